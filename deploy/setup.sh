#!/bin/sh
# Makes everything the Makefile's targets need: .venv, its packages, and a Java for Spark.
#
#   deploy/setup.sh             Python and Java, and what only tests need
#   deploy/setup.sh run         Python and Java
#   deploy/setup.sh python      Python only
#   deploy/setup.sh docs        Python and what builds the site for users
#   deploy/setup.sh bench       Python and the peers of the benchmark
#
# Safe to repeat: a step whose inputs have not changed costs nothing. Environment: PYTHON names the interpreter to
# use; PERSIST_NO_UV=1 leaves an installed uv alone. Writes .venv/env, which the recipes of the Makefile source.
set -eu
cd "$(dirname "$0")/.."
what=${1:-all}
minimum_java=17

say() { printf '%s\n' "persist setup: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }

python_ok() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if have "$candidate" && python_ok "$candidate"; then quick_build "$(command -v "$candidate")"; return; fi
    done
    return 1
}

# Prints the interpreter, or the system's if that is of the same version and the one given was built in a hurry: a
# fifth of all that tests cost. Version managers compile without profiling their work unless asked; distributions,
# python.org and uv do not. The language is the same, the packages are constraints.txt's, and PYTHON is taken as it is.
quick_build() { # $1: an interpreter
    system=/usr/bin/python3
    if [ -z "${PYTHON:-}" ] && [ "$(uname)" = Linux ] && [ -x "$system" ] && ! is_optimised "$1" && is_optimised "$system" &&
        [ "$(minor_version "$1")" = "$(minor_version "$system")" ] && makes_venvs "$system"; then
        printf '%s' "$system"
    else
        printf '%s' "$1"
    fi
}

minor_version() { "$1" -c 'import sys; print(*sys.version_info[:2])'; }
makes_venvs() { use_uv || "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Debian's own rules profile and link the whole, and leave no word of it in what it was configured with.
is_optimised() {
    "$1" -c 'import sys, sysconfig
words = sysconfig.get_config_var("CONFIG_ARGS") or ""
sys.exit("--enable-optimizations" not in words and sys.prefix != "/usr")'
}

use_uv() { [ -z "${PERSIST_NO_UV:-}" ] && have uv; }

# Debian keeps the ensurepip module in a package of its own.
install_venv_module() {
    is_root && have apt-get || return 1
    say "installing python3-venv"
    { apt-get install -y -qq python3-venv || { apt-get update -qq && apt-get install -y -qq python3-venv; }; } >&2
}

make_venv() {
    if [ -x .venv/bin/python ] && python_ok .venv/bin/python; then return; fi
    if python=$(find_python); then :; else
        use_uv || die "Python 3.11 or newer is needed: install it (Debian: apt-get install python3 python3-venv; macOS: brew install python) or point PYTHON at one"
        python=3.11 # uv brings its own.
    fi
    say "making .venv with $python"
    rm -rf .venv
    if use_uv && uv venv -q --python "$python" .venv >&2; then return; fi
    "$python" -m venv .venv >&2 && return
    rm -rf .venv
    install_venv_module && "$python" -m venv .venv >&2 ||
        die "Python's venv module is missing: install it (Debian: apt-get install python3-venv) or install uv"
}

install_packages() { # $1: extras
    say "installing packages [$1] (the first time takes a minute or two)"
    if use_uv && uv pip install -q --python .venv/bin/python -c constraints.txt -e ".[$1]" >&2; then return; fi
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
    .venv/bin/python -m pip install -q -q --disable-pip-version-check -c constraints.txt -e ".[$1]" >&2 ||
        die "packages could not be installed: see the lines above; without a network, point pip at a mirror"
}

fingerprint() { { cat pyproject.toml constraints.txt; pwd; .venv/bin/python -V; } | cksum; }

python_packages() { # $1: stamp, $2: extras
    make_venv
    if [ "$(cat ".venv/$1" 2>/dev/null)" = "$(fingerprint)" ]; then return; fi
    install_packages "$2"
    fingerprint >".venv/$1"
}

java_ok() { # $1: a java command
    version=$("$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$version" ] && [ "$version" -ge "$minimum_java" ]
}

java_in_jdk() {
    for home in .jdk/*/ .jdk/*/Contents/Home/; do
        if [ -x "${home}bin/java" ] && java_ok "${home}bin/java"; then printf '%s' "$PWD/${home%/}"; return; fi
    done
    return 1
}

# Prints the JAVA_HOME to export, or nothing when the java on PATH will do. Fails when there is none.
find_java() {
    if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && java_ok "$JAVA_HOME/bin/java"; then
        printf '%s' "$JAVA_HOME"
        return
    fi
    java_in_jdk && return
    have java && java_ok java
}

install_java() {
    if is_root && have apt-get; then
        say "installing a Java 17 runtime (openjdk-17-jre-headless)"
        { apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless ||
            { apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless; }; } >&2 && return
    fi
    say "installing a Java 17 runtime into .jdk"
    if .venv/bin/python -c 'import jdk; jdk.install("17", jre=True, path=".jdk")' >.venv/java.log 2>&1; then return; fi
    say "it could not be fetched: $(tail -n 1 .venv/java.log)"
    return 1
}

# Not named java: a function would shadow the command.
provide_java() {
    home=$(find_java) || { install_java && home=$(find_java); } ||
        die "Java 17 or newer is needed by Spark and could not be installed: install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME; make check and make dev do without it"
    write_env "$home"
}

# For tests of what balancers do: without one they are skipped, and say so.
offer_balancer() {
    [ -x /usr/sbin/haproxy ] || have haproxy || ! is_root || ! have apt-get || {
        say "installing haproxy"
        apt-get install -y -qq --no-install-recommends haproxy >&2 || say "haproxy could not be installed: its tests are skipped"
    }
}

# A server for tests of MySQL sources, which is no wheel: without one they are skipped, and say so.
offer_mariadb() {
    [ -x /usr/sbin/mariadbd ] || have mariadbd || ! is_root || ! have apt-get || {
        say "installing mariadb-server-core"
        { apt-get install -y -qq --no-install-recommends mariadb-server-core ||
            { apt-get update -qq && apt-get install -y -qq --no-install-recommends mariadb-server-core; }; } >&2 ||
            say "MariaDB could not be installed: its tests are skipped"
    }
}

# A broker for tests of Kafka sources, which is no wheel: without Maven those are skipped, and say so.
offer_kafka() {
    have mvn || { [ -d .kafka ] || say "there is no Maven: tests with a Kafka broker are skipped"; return 0; }
    if [ "$(cat .kafka/stamp 2>/dev/null)" = "$(cksum <deploy/kafka/pom.xml)" ]; then return; fi
    say "fetching a Kafka broker for tests (50 MB)"
    rm -rf .kafka .kafka.new
    if mvn -q -B -Dstyle.color=never -f deploy/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$PWD/.kafka.new" >&2; then
        cksum <deploy/kafka/pom.xml >.kafka.new/stamp
        mv .kafka.new .kafka
    else
        rm -rf .kafka.new
        say "it could not be fetched: tests with a Kafka broker are skipped"
    fi
}

# What the classes of Spark and Kafka are once they are loaded, for the JVMs of the tests, which do without if it is not
# there.
offer_classes() {
    archive "Spark's classes" spark
    [ ! -d .kafka ] || archive "Kafka's classes" kafka .kafka
}

archive() { # $1: of what, $2: the program's name, the rest: its words
    of=$1 name=$2
    shift 2
    if [ "$(cat ".venv/stamp-classes-$name" 2>/dev/null)" = "$(classes "$name")" ]; then return; fi
    say "loading $of once for all tests (half a minute)"
    rm -f ".venv/stamp-classes-$name"
    if (. .venv/env && python "deploy/${name}_classes.py" "$@" ".venv/$name.jsa") >".venv/classes-$name.log" 2>&1; then
        classes "$name" >".venv/stamp-classes-$name"
    else
        say "they could not be: its tests take longer (.venv/classes-$name.log)"
    fi
}

classes() { # $1: the program's name
    { fingerprint; cat "deploy/$1_classes.py" .kafka/stamp 2>/dev/null; (. .venv/env && java -version 2>&1); } | cksum
}

write_env() { # $1: JAVA_HOME or empty
    {
        printf 'PATH="%s/.venv/bin:$PATH"\n' "$PWD"
        printf 'PYSPARK_PYTHON="%s/.venv/bin/python"\n' "$PWD"
        printf 'PYSPARK_DRIVER_PYTHON="$PYSPARK_PYTHON"\n'
        printf 'export PATH PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON\n'
        # A JAVA_HOME that points at an older Java must not win over the one found.
        if [ -n "$1" ]; then printf 'JAVA_HOME="%s"\nexport JAVA_HOME\n' "$1"; else printf 'unset JAVA_HOME\n'; fi
    } >.venv/env.new
    if cmp -s .venv/env.new .venv/env; then rm .venv/env.new; else mv .venv/env.new .venv/env; fi
}

case $what in
all)
    python_packages stamp dev
    provide_java
    offer_balancer
    offer_mariadb
    offer_kafka
    offer_classes
    ;;
run)
    python_packages stamp dev
    provide_java
    ;;
python) python_packages stamp dev ;;
docs)
    python_packages stamp-docs dev,docs
    fingerprint >.venv/stamp
    ;;
bench)
    python_packages stamp-bench dev,bench
    fingerprint >.venv/stamp
    provide_java
    ;;
*) die "unknown step $what: use all, run, python, docs or bench" ;;
esac

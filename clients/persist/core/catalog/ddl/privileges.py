"""Privileges: who may do what, in PostgreSQL's letters. Owners and superusers may do everything.

r SELECT, a INSERT, w UPDATE, d DELETE, U USAGE (schemas, clusters), C CREATE (databases, schemas, the environment).
Source: collections: names; design document 5, privileges of holds.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from persist.core.catalog.ddl.described import SUPERUSER
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import PrivilegeMissing
from persist.core.catalog.kinds import SYSTEM_PRIVILEGE
from persist.core.catalog.values import PUBLIC, Acl, Id, ObjectType, RoleRef, Space
from persist.errors import InvalidArgument

BITS: Final = {"a": 1 << 0, "r": 1 << 1, "w": 1 << 2, "d": 1 << 3, "U": 1 << 8, "C": 1 << 9, "A": 1 << 32}
"""One bit for each, as PostgreSQL has them; A (catalog_admin: raw commits) is ours."""
WORDS: Final = {
    "r": "SELECT",
    "a": "INSERT",
    "w": "UPDATE",
    "d": "DELETE",
    "U": "USAGE",
    "C": "CREATE",
    "A": "CATALOG ADMIN",
}
_OF_ROWS: Final = "rawd"
APPLY: Final = {
    ObjectType.TABLE: _OF_ROWS,
    ObjectType.SUBSOURCE: "r",
    ObjectType.SOURCE: "r",
    ObjectType.VIEW: "r",
    ObjectType.MATERIALIZED_VIEW: "r",
    ObjectType.INDEX: "r",
    ObjectType.CURSOR: "r",
    ObjectType.SCHEMA: "UC",
    ObjectType.DATABASE: "UC",
    ObjectType.CLUSTER: "UC",
    ObjectType.SYSTEM: "CA",
}
"""What may be granted on what."""


class Owned(Protocol):
    """What has an owner and privileges: items, schemas, databases, clusters."""

    @property
    def owner(self) -> RoleRef:
        """Who may do everything with it."""
        ...

    @property
    def acls(self) -> tuple[Acl, ...]:
        """Who else may do what."""
        ...


def bits(privileges: str, kind: ObjectType) -> int:
    """The bits of letters that may be granted on a kind of object. Raises InvalidArgument."""
    allowed = APPLY.get(kind, "")
    wrong = [each for each in privileges if each not in allowed]
    if wrong or not privileges:
        words = ", ".join(WORDS[each] for each in allowed)
        hint = (
            f"of {words}; ALL ON {kind.words.upper()} name" if allowed else f"nothing can be granted on a {kind.words}"
        )
        raise InvalidArgument("no such privilege on this", hint=hint, kind=kind.words, got=privileges[:20])
    return sum(BITS[each] for each in set(privileges))


def letters(acls: Iterable[Acl]) -> str:
    """Privileges as text: ``role=letters/grantor`` by comma, as PostgreSQL shows them, with ids of roles."""
    shown = ((acl, "".join(each for each in BITS if acl.mode_bits & BITS[each])) for acl in acls)
    return ",".join(f"{acl.grantee}={which}/{acl.grantor}" for acl, which in shown)


def roles_of(view: CatalogView, role: RoleRef) -> AbstractSet[RoleRef]:
    """A role, those it is a member of, and PUBLIC."""
    found, waiting = {PUBLIC}, [role]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        known = view.roles.get(each)
        if known is not None and known.attributes.inherit:
            waiting += [membership.role for membership in known.membership]
    return found


def is_superuser(view: CatalogView, role: RoleRef) -> bool:
    """Whether a role may do everything."""
    known = view.roles.get(role)
    return role == SUPERUSER or (known is not None and known.attributes.superuser is True)


def owns(view: CatalogView, role: RoleRef, it: Owned) -> bool:
    """Whether a role may do what owners may."""
    return is_superuser(view, role) or it.owner in roles_of(view, role)


def may(view: CatalogView, role: RoleRef, letter: str, it: Owned) -> bool:
    """Whether a role has a privilege on something."""
    if owns(view, role, it):
        return True
    mine = roles_of(view, role)
    return any(acl.grantee in mine and acl.mode_bits & BITS[letter] for acl in it.acls)


def may_in_system(view: CatalogView, role: RoleRef, letter: str) -> bool:
    """Whether a role has a privilege on the environment: C to make databases, A for raw commits."""
    mine = roles_of(view, role)
    granted = view.objects(SYSTEM_PRIVILEGE).items()
    return is_superuser(view, role) or any(key.grantee in mine and of.mode_bits & BITS[letter] for key, of in granted)


def check_may(view: CatalogView, role: RoleRef, letter: str, kind: ObjectType, name: str, it: Owned) -> None:
    """Raises PrivilegeMissing unless the role has the privilege on this object."""
    if not may(view, role, letter, it):
        raise missing(view, role, WORDS[letter], kind, name, it.owner)


def check_owns(view: CatalogView, role: RoleRef, kind: ObjectType, name: str, it: Owned) -> None:
    """Raises PrivilegeMissing unless the role owns this object, or may do what owners may."""
    if not owns(view, role, it):
        raise missing(view, role, "ownership", kind, name, it.owner)


def check_may_in_system(view: CatalogView, role: RoleRef, letter: str) -> None:
    """Raises PrivilegeMissing unless the role has the privilege on the environment. For raw commits: A."""
    if not may_in_system(view, role, letter):
        raise missing(view, role, WORDS[letter], ObjectType.SYSTEM, "the environment", SUPERUSER)


def check_superuser(view: CatalogView, role: RoleRef, name: str) -> None:
    """Raises PrivilegeMissing unless the role is a superuser."""
    if not is_superuser(view, role):
        raise missing(view, role, "superuser", ObjectType.SYSTEM, name, SUPERUSER)


def check_users(id: Id, kind: ObjectType, name: str) -> None:
    """Raises InvalidArgument for what the system made: it cannot be altered."""
    if id.space is not Space.USER:
        raise InvalidArgument("the system made this, and it cannot be altered", kind=kind.words, name=name)


def granted(
    acls: tuple[Acl, ...], grantee: RoleRef, grantor: RoleRef, mode_bits: int, *, revoke: bool
) -> tuple[Acl, ...]:
    """Privileges after some were given to a role, or (``revoke``) taken from it, of any grantor; rising by role."""
    kept = {(acl.grantee, acl.grantor): acl.mode_bits for acl in acls}
    if revoke:
        kept = {who: have & ~mode_bits if who[0] == grantee else have for who, have in kept.items()}
    else:
        kept[grantee, grantor] = kept.get((grantee, grantor), 0) | mode_bits
    return tuple(Acl(who, by, have) for (who, by), have in sorted(kept.items()) if have)


def role_name(view: CatalogView, role: RoleRef) -> str:
    """What a role is called; its id where it has no name."""
    known = view.roles.get(role)
    return "PUBLIC" if role == PUBLIC else str(role) if known is None else known.name


def missing(
    view: CatalogView, role: RoleRef, privilege: str, kind: ObjectType, name: str, owner: RoleRef
) -> PrivilegeMissing:
    """The error for what a role may not do."""
    by = role_name(view, owner)
    return PrivilegeMissing(
        "this role may not do this",
        hint=f"{by} can grant it" if privilege in WORDS.values() else f"act as {by}",
        role=role_name(view, role),
        privilege=privilege,
        kind=kind.words,
        name=name,
        owner=by,
    )

"""How an instance stands, for people: *its connection and its membership → an InstanceStatus*. Pure."""

from __future__ import annotations

from lockcore.membership import Member
from lockcore.model import InstanceStatus
from lockcore.pipeline import Pipeline


def status_of(pipe: Pipeline, member: Member, owed_releases: int) -> InstanceStatus:
    """A snapshot of one instance."""
    hello = member.hello
    return InstanceStatus(
        index=pipe.index,
        address=pipe.address,
        state=member.state.value,
        reason=member.reason,
        run_id=hello.run_id if hello else "",
        server=hello.server if hello else "",
        release_command=pipe.dialect.release_command if hello else "",
        commands=pipe.commands,
        bytes_sent=pipe.bytes_sent,
        bytes_received=pipe.bytes_received,
        writes=pipe.writes,
        reads=pipe.reads,
        late_replies=pipe.late_replies,
        pending=pipe.awaited,
        owed_releases=owed_releases,
        reconnects=pipe.reconnects,
        errors=dict(pipe.errors),
    )

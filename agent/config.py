"""An agent's configuration: a TOML file, every setting also as TALLYRING_SECTION_FIELD.

Each field says what it means, which way to turn it, and how it relates to others. What two agents
of a ring must agree on stands in [ring]; everything else may differ from agent to agent. Validated
as a whole at start, with an error that names the field.
"""

from __future__ import annotations

import os
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import urlsplit

from agent.errors import ConfigError
from agent.limits import AGENT_NAME_BYTES_MAX

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
EMBEDDED = "embedded"
Section = TypeVar("Section")


@dataclass(frozen=True, slots=True)
class AgentSection:
    """[agent]: who this agent is and where it lives."""

    # The region whose writes it takes and whose Redis it fills. A label: answers are by region.
    region: str
    # Unique in the ring. Default: the region's name. Never change it for an existing data_dir.
    name: str = ""
    # Address and port of the HTTP server, for clients and for peers. Port 0 takes a free one.
    listen: str = "127.0.0.1:7401"
    # Holds tallyring.db (and an embedded Valkey's files). One agent, one folder, local disk.
    data_dir: Path = Path("data")
    # "system", or "manual": the time of entries moves only by POST /v1/clock. For tests, replays.
    clock: str = "system"
    # Added to the system's clock, in ms: for tests of clocks that are off. Never in production.
    clock_shift_ms: int = 0
    # Below this much free space on data_dir's disk writes are refused (503); reads go on.
    disk_free_min_bytes: int = 64 * 2**20
    # How many keys of entries are remembered at the most (about 200 bytes each); beyond, entries
    # with a key are refused (503) until older ones are collected.
    facts_max: int = 20_000_000
    # debug, info, warning or error.
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class RingSection:
    """[ring]: which ring, and how its agents find and trust each other."""

    # Agents of another ring are refused. The same in all agents.
    name: str
    # A file with the ring's secret (at least 16 characters), shared by all agents; never sent.
    # While it is rotated it holds one a line: the first signs, each is accepted.
    secret_file: Path
    # How peers reach this agent. Default: http:// and `listen`.
    advertise: str = ""
    # Any living members; empty for the first agent. More seeds only help at the first start.
    seeds: tuple[str, ...] = ()
    # How long a start waits for all members to confirm this agent's identity, and a message between
    # agents for its proof. Lower: faster starts, and more often a new incarnation.
    confirm_s: float = 3.0


@dataclass(frozen=True, slots=True)
class RedisSection:
    """[redis]: the region's rank store."""

    # redis:// or rediss:// URL, unix:// socket, or "embedded": a Valkey of this agent's own.
    url: str = EMBEDDED
    # For "embedded": its TCP port on 127.0.0.1; 0 takes a free one, written to
    # data_dir/valkey.port.
    port: int = 0
    # How long one command may take before Redis counts as down. Higher rides out slow disks.
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GossipSection:
    """[gossip]: how often and how much agents exchange. Defaults fit links between continents."""

    # Time between exchanges with the same peer when nothing is written; +-20 % jitter.
    interval_s: float = 1.0
    # How soon after a local commit peers are poked. Lower: fresher ranks elsewhere, more bytes.
    poke_s: float = 0.05
    # At most this many rows and bytes in one chunk. Higher: faster catch-up; lower: smoother
    # writes.
    chunk_rows_max: int = 2_000
    chunk_bytes_max: int = 256 * 1024
    # How long one exchange goes on with the same peer before others get their turn.
    exchange_budget_s: float = 2.0
    # Time-outs of a connection and of one request. Above the slowest link's round trip.
    connect_timeout_s: float = 3.0
    request_timeout_s: float = 10.0
    # A failing peer is tried again after 1 s, doubled up to this, with full jitter, for ever.
    backoff_max_s: float = 30.0
    # Up to this many peers all are in each round; beyond, the stalest and two at random.
    fanout_all_max: int = 8
    # Exchanges in flight at once, one a peer. More only adds redundant rows.
    in_flight_max: int = 8
    # How long a write with ack=replicated waits for another region. Lower: sooner a 504.
    replicated_s: float = 5.0
    # A new agent whose ring has at least so many cells begins with a snapshot of a seed. Below, the
    # ordinary exchange is as fast.
    snapshot_cells_min: int = 20_000
    # The local address that connections to peers come from; empty: the system chooses.
    source_address: str = ""


@dataclass(frozen=True, slots=True)
class ProjectionSection:
    """[projection]: how Redis is kept up to date."""

    # Members written by one script call. Higher: fewer calls; lower: shorter stalls of Redis.
    batch_members_max: int = 500
    # The least time between two turns under load. Lower: fresher ranks; higher: cheaper writes.
    interval_s: float = 0.02
    # How often Redis is looked at when nothing changes: finds a flush or a failover. Lower: sooner.
    check_s: float = 1.0
    # How long the other agents of the region wait, after this one's last sign in Redis, before one
    # of them takes over. The same for all of a region. Lower: sooner; higher: rides out pauses.
    lease_s: float = 4.0
    # How long a sliding window ("last:7d") stands before it is computed anew, if anything under it
    # changed. Lower: fresher; higher: less to read, as all of its buckets are.
    sliding_s: float = 60.0
    # The same for the windows of `trend` boards, which are small.
    trend_s: float = 5.0
    # How often a part of every window in Redis is compared with SQLite: its size, the best 100
    # members and 1,000 others. Lower: damage is found sooner; higher: it costs less.
    patrol_s: float = 60.0
    # How often every member of every window is compared, in step with the clock: by default each
    # day at 03:00 UTC.
    scan_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class RepairSection:
    """[repair]: how cells are looked at again, to find what decays (docs/operations.md)."""

    # How many cells a second are compared with a peer's. Higher: damage is found sooner; lower: it
    # costs less. 1,000 is about one percent of a core here, and as much at the peer.
    cells_per_s: float = 1_000.0
    # The same while somebody waits for it: during an audit, a recount, or after two agents that
    # claim the same writes were seen to differ.
    fast_cells_per_s: float = 20_000.0
    # The rest between two passes over all cells.
    rest_s: float = 60.0
    # How often all sums over cells (buckets, totals) are added up anew.
    recount_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class KeepingSection:
    """[keeping]: an agent's own housekeeping (docs/operations.md)."""

    # How often to look which windows are over and which bans have ended, when nothing else tells.
    # Lower: windows are closed and freed sooner; higher: an idle agent does less.
    interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class AuthSection:
    """[auth]: who may call the public routes."""

    # TOML file of hashed tokens (docs/security.md). Without it only loopback addresses may call.
    tokens_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """One agent's whole configuration."""

    agent: AgentSection
    ring: RingSection
    redis: RedisSection = field(default_factory=RedisSection)
    gossip: GossipSection = field(default_factory=GossipSection)
    projection: ProjectionSection = field(default_factory=ProjectionSection)
    repair: RepairSection = field(default_factory=RepairSection)
    keeping: KeepingSection = field(default_factory=KeepingSection)
    auth: AuthSection = field(default_factory=AuthSection)

    @property
    def name(self) -> str:
        """The agent's name in the ring."""
        return self.agent.name or self.agent.region

    @property
    def listen(self) -> tuple[str, int]:
        """Host and port of the HTTP server."""
        host, _, port = self.agent.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def advertise(self) -> str:
        """The URL under which peers reach this agent, without a trailing slash."""
        return (self.ring.advertise or f"http://{self.agent.listen}").rstrip("/")


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read a configuration file, with the environment on top.

    Relative paths are taken from the file's folder.

    Raises:
        ConfigError: names the field.
    """
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError("--config", f"{path} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("--config", f"{path} is not valid TOML: {error}") from error
    return parse(document, path.parent, environ)


def parse(document: Mapping[str, Any], folder: Path, environ: Mapping[str, str]) -> Config:
    """A validated configuration from its document and the environment.

    Raises:
        ConfigError: names the field.
    """
    sections = get_type_hints(Config)
    for name in document:
        if name not in sections:
            raise ConfigError(name, "is no section", hint=f"sections: {', '.join(sections)}")
    read = {name: _section(name, cls, document, folder, environ) for name, cls in sections.items()}
    config = Config(**read)
    _check(config)
    return config


def _section(
    name: str,
    cls: type[Section],
    document: Mapping[str, Any],
    folder: Path,
    environ: Mapping[str, str],
) -> Section:
    given = document.get(name, {})
    if not isinstance(given, dict):
        raise ConfigError(name, "is a section, not a value")
    hints = get_type_hints(cls)
    for key in given:
        if key not in hints:
            raise ConfigError(f"{name}.{key}", "is no setting", hint=f"known: {', '.join(hints)}")
    values = {}
    for key, hint in hints.items():
        variable = f"TALLYRING_{name}_{key}".upper()
        if variable in environ:
            values[key] = _from_text(f"{name}.{key}", environ[variable], hint, folder)
        elif key in given:
            values[key] = _from_toml(f"{name}.{key}", given[key], hint, folder)
    for required in fields(cls):  # type: ignore[arg-type]  # every section is a dataclass
        no_default = required.default is required.default_factory
        if no_default and required.name not in values:
            raise ConfigError(f"{name}.{required.name}", "is missing")
    return cls(**values)


def _from_toml(field_name: str, value: Any, hint: Any, folder: Path) -> Any:
    if hint is Path or isinstance(hint, types.UnionType):
        if isinstance(value, str) and value:
            return folder / Path(value).expanduser()
        raise ConfigError(field_name, f"{value!r} is not a path")
    if hint == tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise ConfigError(field_name, f"{value!r} is not a list of strings")
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ConfigError(field_name, f"{value!r} is not of type {hint.__name__}")
    return value


def _from_text(field_name: str, text: str, hint: Any, folder: Path) -> Any:
    if hint == tuple[str, ...]:
        return tuple(item.strip() for item in text.split(",") if item.strip())
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise ConfigError(field_name, f"{text!r} is not of type {hint.__name__}") from None
    if isinstance(hint, types.UnionType):
        hint = get_args(hint)[0]
    return _from_toml(field_name, text, hint, folder)


def _check(config: Config) -> None:
    for field_name, name in (
        ("agent.region", config.agent.region),
        ("agent.name", config.name),
        ("ring.name", config.ring.name),
    ):
        if not NAME.fullmatch(name) or len(name) > AGENT_NAME_BYTES_MAX:
            raise ConfigError(
                field_name,
                f"{name!r} is not a name: 1 to {AGENT_NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -",
            )
    host, _, port = config.agent.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise ConfigError("agent.listen", f"{config.agent.listen!r} is not HOST:PORT")
    for field_name, url in (
        ("ring.advertise", config.advertise),
        *((f"ring.seeds[{i}]", seed) for i, seed in enumerate(config.ring.seeds)),
    ):
        _check_url(field_name, url)
    redis = config.redis.url
    if redis != EMBEDDED and redis.partition(":")[0] not in ("redis", "rediss", "unix"):
        # Its value is not shown: a URL of Redis holds a password.
        raise ConfigError(
            "redis.url", "is neither 'embedded' nor a redis://, rediss:// or unix:// URL"
        )
    if config.agent.clock not in ("system", "manual"):
        raise ConfigError("agent.clock", f"{config.agent.clock!r} is not 'system' or 'manual'")
    if config.agent.facts_max < 1:
        raise ConfigError("agent.facts_max", f"{config.agent.facts_max} is not above 0")
    if config.agent.log_level not in ("debug", "info", "warning", "error"):
        raise ConfigError("agent.log_level", f"{config.agent.log_level!r} is not a level")
    for section_name in ("ring", "redis", "gossip", "projection", "repair", "keeping"):
        section = getattr(config, section_name)
        for setting in fields(section):
            value = getattr(section, setting.name)
            if not isinstance(value, int | float) or setting.name == "port":
                continue
            if not 0 < value < inf:  # neither does "not a number" pass
                raise ConfigError(f"{section_name}.{setting.name}", f"{value} is not above 0")


def _check_url(field_name: str, url: str) -> None:
    """Check an address that this agent, and its peers after it, will call again and again."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        good = parts.scheme in ("http", "https") and bool(host.encode("idna"))
    except ValueError:  # brackets that do not close, a port beyond 65535, a name like `eu..example`
        good = False
    if not good or any(map(str.isspace, url)):
        raise ConfigError(field_name, f"{url!r} is not an http:// or https:// URL")


SECRET_BYTES_MIN = 16
SECRETS_MAX = 4


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """The ring's secrets, one a line; empty lines and those that begin with `# ` are passed over.

    Raises:
        ConfigError: unreadable, no secret or too many, or one shorter than 16 bytes.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            "ring.secret_file",
            f"{path} can't be read: {error.strerror}",
            hint="openssl rand -hex 32 > ring.secret, and the same file for every agent",
        ) from error
    said = (line.strip() for line in lines if not line.startswith(b"# "))
    secrets = tuple(dict.fromkeys(line for line in said if line))
    if not 0 < len(secrets) <= SECRETS_MAX:
        raise ConfigError(
            "ring.secret_file",
            f"{path} holds {len(secrets)} secrets; one a line, 1 to {SECRETS_MAX} are needed",
        )
    shortest = min(len(secret) for secret in secrets)
    if shortest < SECRET_BYTES_MIN:
        raise ConfigError(
            "ring.secret_file",
            f"{path} holds a secret of {shortest} bytes, {SECRET_BYTES_MIN} are needed",
        )
    return secrets

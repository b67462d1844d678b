"""Preparing on a local Ray: the same cache as the usual engine's, and nothing is left running."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.core.errors import ConfigError, LostRankError
from arachne.core.families import WAN
from arachne.core.ledger import Ledger
from arachne.data.inspect import inspect_dataset
from arachne.data.make_arrays import Settled, Workshop
from arachne.models.encoders import text_encoder_named, video_encoder_named
from arachne.trainer.preparation import workshop_of
from arachne.trainer.preparing_ray import RayCluster, make_on_ray, ray_cluster
from tests.data.media import write_damaged_packets
from tests.trainer.tiny_runs import NUM_CLIPS, changed, tiny_config, write_captions

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed: pip install 'arachne[ray]'"
    ),
]

DAMAGED = "g.mp4"


@dataclass(frozen=True)
class Trapped:
    """An encoder that does something to the process that uses it."""

    fingerprint: str
    trap: Any

    def encode(self, what: Any, /) -> Any:
        self.trap(what)
        return np.zeros((2, 3), np.float32)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as found:
        ray: Any = import_module("ray")  # not before: it reads the environment
        # Its processes import this module by name otherwise, which they cannot.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        assert ray.util.get_node_ip_address() == "127.0.0.1"
        yield found
    assert not own_ray_processes()


def own_ray_processes() -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "arachne-ray-" in words and path.parent.name != str(os.getpid()):
            found.append(words)
    return found


@pytest.fixture
def clips(own_clips: Path) -> Path:
    """With one whose packets are damaged, which only decoding finds out."""
    write_damaged_packets(own_clips / DAMAGED)
    names = sorted(path.name for path in own_clips.iterdir() if path.suffix in (".mp4", ".png"))
    write_captions(own_clips, names)
    return own_clips


@pytest.fixture
def ledger(clips: Path) -> Ledger:
    data = tiny_config(clips, Path("unused")).data
    return inspect_dataset(clips, data.shape_rules, WAN.geometry, "error", num_workers=1)


@pytest.fixture
def workshop(clips: Path, tmp_path: Path) -> Workshop:
    config = tiny_config(clips, tmp_path / "run")
    return workshop_of(config, video_encoder_named("dct"), text_encoder_named("hashed", 4))


def make(
    cluster: RayCluster, workshop: Workshop, ledger: Ledger, num_actors: int = 1
) -> dict[str, Settled]:
    settled: dict[str, Settled] = {}
    make_on_ray(
        workshop,
        workshop.store.pieces(ledger.rows),
        cluster=cluster,
        num_actors=num_actors,
        device="cpu",
        on_settled=lambda event: settled.update({event.key: event}),
    )
    return settled


def arrays_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


def with_video_trap(workshop: Workshop, trap: Any) -> Workshop:
    return replace(
        workshop,
        store=replace(workshop.store, video_fingerprint="trap"),
        video_encoder=Trapped("trap", trap),
    )


def test_the_verb_makes_the_cache_of_the_usual_engine_byte_for_byte_and_leaves_nothing_running(
    clips: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcomes = {}
    for engine in ("ray", "processes"):
        config = tiny_config(clips, tmp_path / engine / "run", dtype="float32")
        config = changed(config, "data", cache=str(tmp_path / engine / "cache"))
        write_resolved(changed(config, "run", ranks=1), tmp_path / f"{engine}.toml")
        words = ["prepare", str(tmp_path / f"{engine}.toml"), "--workers", "2", "--json"]
        assert main([*words, "--engine", engine]) == 3
        outcomes[engine] = json.loads(capfd.readouterr().out)
        assert not own_ray_processes()
    for outcome in outcomes.values():
        del outcome["wall_s"]
    assert outcomes["ray"] == outcomes["processes"]
    assert [rejected["clip"] for rejected in outcomes["ray"]["rejected"]] == [DAMAGED]
    ours, usual = (arrays_of(tmp_path / engine / "cache") for engine in ("ray", "processes"))
    assert ours == usual
    assert len(ours) == 2 * NUM_CLIPS + 2
    assert not any((tmp_path / "ray" / "cache" / "claims").iterdir())


@pytest.mark.slow
def test_an_actor_that_is_killed_costs_no_clip_and_a_fatal_clip_only_itself(
    cluster: RayCluster, workshop: Workshop, ledger: Ledger, tmp_path: Path
) -> None:
    fatal = next(row.bucket for row in ledger.rows if row.clip.name == "b.mp4")
    assert fatal is not None
    shape = (fatal.frames, fatal.height, fatal.width, 3)
    once = tmp_path / "killed"

    def trap(frames: np.ndarray) -> None:
        if frames.shape == shape or not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    trapped = with_video_trap(workshop, trap)
    settled = make(cluster, trapped, ledger)
    reasons = sorted(event.reason for event in settled.values() if event.reason)
    assert len(reasons) == 2, "of the fatal clip and of the damaged one"
    assert reasons[1] == "preparing it ended the process 2 times"
    amended = trapped.store.amended(ledger, {})
    rejected = [row.clip.name for row in amended.rows if row.status == "rejected"]
    assert rejected == ["b.mp4", DAMAGED]
    assert all(map(trapped.store.is_settled, trapped.store.pieces(ledger.rows)))


@pytest.mark.slow
def test_actors_that_end_whatever_they_do_end_the_work(
    cluster: RayCluster, workshop: Workshop, ledger: Ledger
) -> None:
    trapped = with_video_trap(workshop, lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(LostRankError, match="before they have made anything"):
        make(cluster, trapped, ledger)
    store = trapped.store
    reasons = [store.rejections.reason_of(piece.key) for piece in store.pieces(ledger.rows)]
    found = [reason for reason in reasons if reason]
    assert not [reason for reason in found if "ended the process" in reason], "that was no clip's"
    assert len(found) <= 1, "the damaged one's"


def test_an_error_that_every_actor_would_meet_is_raised(
    cluster: RayCluster, workshop: Workshop, ledger: Ledger
) -> None:
    def refuse(_: object) -> None:
        raise ConfigError("no weights; name another folder")

    with pytest.raises(ConfigError, match="no weights"):
        make(cluster, with_video_trap(workshop, refuse), ledger)


def test_more_actors_than_there_are_cores_are_refused(cluster: RayCluster) -> None:
    assert cluster.device("auto") == "cpu"
    assert cluster.num_actors("cpu", None) == cluster.num_cpus
    with pytest.raises(ConfigError, match=r"--workers is 999, but the Ray cluster has \d+ CPU"):
        cluster.num_actors("cpu", 999)
    with pytest.raises(ConfigError, match="the Ray cluster has no GPU"):
        cluster.device("cuda")

"""What happens at some steps beside training: validation, the best checkpoint, sample videos."""

from collections.abc import Callable
from math import inf, nan

from arachne.core.cluster import Cluster
from arachne.core.errors import CheckpointError
from arachne.core.units import count_text
from arachne.runtime.messages import text_of_first
from arachne.trainer.agreement import all_agree, do_together
from arachne.trainer.checkpoint import keep_of, prune
from arachne.trainer.checkpoint_files import (
    BEST,
    Best,
    checkpoints_dir,
    disk_errors_named,
    known_best,
    write_best,
)
from arachne.trainer.interval_samples import sample_videos
from arachne.trainer.listener import Listener
from arachne.trainer.memory_reports import LESS_VALIDATION, told_if_full
from arachne.trainer.saver import CheckpointSaver
from arachne.trainer.session import Session
from arachne.trainer.validation import validation_loss


class Milestones:
    """Validates and samples where the run file asks for it; every rank has one.

    All ranks call each method together. What was due when a run was stopped, or killed, is made up
    for when it is resumed: the listener knows what was done. A run that keeps a moving average of
    the weights is judged by that.

    Args:
        session: This rank's.
        listener: Who is told.
        cluster: What launches are planned for now; rank 0's counts.
        wants_stop: Whether this rank was asked to stop.
    """

    def __init__(
        self,
        session: Session,
        listener: Listener,
        cluster: Callable[[], Cluster],
        wants_stop: Callable[[], bool],
    ) -> None:
        self._session = session
        self._listener = listener
        self._cluster = cluster
        self._wants_stop = wants_stop
        self.was_stopped = False
        """Whether some rank was asked to stop, so that what was due is left for a resumed run."""
        self._best_loss = inf

    def begin(self, done: int) -> float | None:
        """Before the first step that is trained now; gives what `reach` gives."""
        session = self._session
        do_together(session.world, session.groups.world, lambda: self._listener.on_begin(done))
        session.recorder.finish(step=done, planner="")
        self._best_loss = self._best_loss_until(done)
        if session.config.validation.every:
            session.say(_validated_text(session))
        return self.reach(done)

    def reach(self, done: int) -> float | None:
        """After so many steps: the validation loss if it is the lowest so far and is to be kept.

        What the run started from is no candidate. Then `keep_best` is to follow, once the state is
        being saved.

        Raises:
            DataError: No held-out clip can be read.
            InfeasibleError: A held-out clip fits nowhere on the cluster.
            RankMemoryError: A rank has no memory for it.
        """
        settings, last = self._session.config.validation, self._session.config.run.steps
        validates = settings.is_validated(done, last) and not self._is_known(
            self._listener.is_validated, done
        )
        samples = settings.is_sampled(done, last) and not self._is_known(
            self._listener.is_sampled, done
        )
        if not validates and not samples:
            return None
        best = None
        when = f"validation loss or samples after {count_text(done, 'step')}"
        with told_if_full(self._session.world, when, LESS_VALIDATION):
            self._session.optimizer.settle()
            self._show_averages(done)
            if validates:
                loss = self._validate(done)
                is_best = settings.keep_best and done > 0 and loss < self._best_loss
                best = loss if is_best else None
            if samples and not self.was_stopped:
                self._sample(done)
            self._show_weights(done)
        return best

    def keep_best(self, done: int, loss: float, saver: CheckpointSaver) -> None:
        """Name this step's checkpoint the best, once what `saver` has begun is committed; the one
        that was the best before is pruned if it is only kept as such.

        Raises:
            CheckpointError: It cannot be written; on every rank.
        """
        session = self._session
        stops = session.config.checkpoint.on_error == "stop"
        try:
            saver.finish()
        except CheckpointError:
            if stops:
                raise
            return  # it was said; the best before stays the best

        def write() -> None:
            if session.world.rank == 0:
                with disk_errors_named(session.run_dir, BEST):
                    write_best(checkpoints_dir(session.run_dir), Best(step=done, loss=loss))
                prune(session.run_dir, keep_of(session.config.checkpoint), newest_step=done)

        try:
            do_together(session.world, session.groups.world, write)
        except CheckpointError as error:
            if stops:
                raise
            session.say(f"{error}; the best before stays the best")
        else:
            self._best_loss = loss
        session.recorder.finish(step=done, planner="checkpoint")

    def _show_averages(self, done: int) -> None:
        """Put the moving averages of the weights in their place, if the run keeps any."""
        if self._session.config.optimizer.ema_decay:
            self._session.optimizer.share(averages=True)
            self._session.recorder.finish(step=done, planner="averages")

    def _show_weights(self, done: int) -> None:
        if self._session.config.optimizer.ema_decay:
            self._session.optimizer.share()
            self._session.recorder.finish(step=done, planner="averages")

    def _validate(self, done: int) -> float:
        """The validation loss; not a number if it was stopped."""
        session = self._session
        found = validation_loss(session, self._cluster(), done, self._wants_stop)
        if found is None:
            self.was_stopped = True
            return nan
        do_together(
            session.world,
            session.groups.world,
            lambda: self._listener.on_validation(done, found),
        )
        session.recorder.finish(step=done, planner="validation")
        return found.loss

    def _sample(self, done: int) -> None:
        session = self._session
        session.recorder.progress.change("sample")

        videos = sample_videos(session, self._cluster(), done, self._wants_stop)

        def write() -> None:
            self._listener.on_samples(done, videos or ())

        def join() -> None:
            if session.world.rank == 0:
                self._listener.on_sampled(done)

        if all_agree(session.world, session.groups.world, videos is not None):
            do_together(session.world, session.groups.world, write)
            do_together(session.world, session.groups.world, join)
        else:
            self.was_stopped = True
        session.recorder.finish(step=done, planner="samples")

    def _is_known(self, ask: Callable[[int], bool], done: int) -> bool:
        """Rank 0's answer, on every rank."""
        world = self._session.world
        answer = "yes" if world.rank == 0 and ask(done) else ""
        shared = text_of_first(answer, self._session.groups.world, world.device)
        self._session.recorder.finish(step=done, planner="")
        return bool(shared)

    def _best_loss_until(self, done: int) -> float:
        """The loss of the best checkpoint that an earlier part of the run wrote; inf if none."""
        session = self._session
        text = ""
        if session.world.rank == 0 and session.config.validation.keep_best and done:
            best = known_best(checkpoints_dir(session.run_dir))
            if best is not None and best.step <= done:
                text = repr(best.loss)
        shared = text_of_first(text, session.groups.world, session.world.device)
        session.recorder.finish(step=done, planner="")
        return float(shared) if shared else inf


def _validated_text(session: Session) -> str:
    """Which clips the validation loss is of."""
    share, num_held_out = session.config.data.held_out, len(session.prepared.held_out.rows)
    if not num_held_out:
        return (
            f"data.held_out = {share:g} holds no clip out: the validation loss is of clips that "
            "train, at noise that does not"
        )
    num_clips = num_held_out + len(session.prepared.train.rows)
    limit = session.config.validation.clips
    text = f"{num_held_out:,} of {count_text(num_clips, 'clip')} are held out"
    return (
        f"{text}, {limit:,} of them for the validation loss" if 0 < limit < num_held_out else text
    )

"""The training loop of one rank, from the first or a later step to the last.

While step k runs, the clips of step k+1 are read and the plan of step k+2 is made: a plan is known
one step ahead, so that each rank can load what its own launches need and nothing else.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from arachne.core.cluster import Cluster
from arachne.core.errors import CheckpointError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.units import bytes_text, count_text, step_text
from arachne.cost.model import CostModel
from arachne.cost.training_state import COMMUNICATOR_BYTES
from arachne.data.loader import ClipLoader
from arachne.runtime.plan_source import PlanSource
from arachne.runtime.watched import launch_texts
from arachne.trainer import state
from arachne.trainer.agreement import do_together, largest
from arachne.trainer.bad_steps import too_many_bad_steps, why_skipped
from arachne.trainer.cluster_choice import chosen_cluster, fallback_plan
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.launch_times import measured_launches
from arachne.trainer.listener import Listener, StepReport
from arachne.trainer.measure import shared_trace, warm_compiled_blocks
from arachne.trainer.memory_reports import (
    LESS_STATE,
    memory_report,
    still_fits,
    told_if_full,
    told_if_stranded,
    write_report,
)
from arachne.trainer.milestones import Milestones
from arachne.trainer.online_steps import OnlineSteps, online_steps
from arachne.trainer.planning import PlanRequest, plan_batch
from arachne.trainer.recalibration import Recalibrator
from arachne.trainer.saver import CheckpointSaver
from arachne.trainer.schedule import learning_rate
from arachne.trainer.session import Session, array_bytes
from arachne.trainer.state import Progressed, Upcoming
from arachne.trainer.step import run_step, slots_of_rank
from arachne.trainer.step_clock import StepClock
from arachne.trainer.step_figures import step_figures
from arachne.trainer.stop_request import StopRequest

_MAX_SHOWN_RANKS = 16
"""Larger worlds write their logs and exchange none; `arachne report` joins them afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a run ended.

    Attributes:
        step: Optimizer steps done.
        num_skipped: Of these, those that changed nothing.
        stopped_by: Number of the signal that ended it before the last step; None if none did.
        losses: Losses of the newest updates, at most `LOSSES_KEPT`.
        cluster: What plans were made for at the end.
        left_out: Names of clips that some step had to do without, sorted.
        save_stalls_s: How long training waited for each checkpoint to begin, on this rank.
    """

    step: int
    num_skipped: int
    stopped_by: int | None
    losses: tuple[float, ...]
    cluster: Cluster
    left_out: tuple[str, ...]
    save_stalls_s: tuple[float, ...]

    @property
    def was_stopped(self) -> bool:
        """Whether a signal ended it before the last step."""
        return self.stopped_by is not None


def train(
    session: Session,
    listener: Listener,
    *,
    resume: bool,
    takes_other_clips: bool = False,
) -> Finished:
    """Train to `run.steps`; all ranks call it together.

    A run is resumed on other clips than before only if `takes_other_clips`.

    Raises:
        CheckpointError: There is nothing to resume from, or a checkpoint cannot be written.
        DataError: `run.max_bad_steps` in a row had no finite gradient, or no clip to train on.
        InfeasibleError: A clip fits nowhere on the cluster; told before the first step.
        RankMemoryError: A rank ran out of memory where the others cannot go on without it.
    """
    stop = StopRequest()
    progressed = Progressed(step=0, num_updates=0, losses=(), cluster=None)
    with told_if_full(session.world, "before the first step", LESS_STATE):
        if resume:
            progressed = state.load_newest(session, takes_other_clips=takes_other_clips)
        warm_compiled_blocks(session)
        cluster = chosen_cluster(session, progressed.cluster)
    recalibrator = Recalibrator(session, cluster)
    milestones = Milestones(
        session, listener, lambda: recalibrator.cluster, wants_stop=lambda: stop.is_set
    )
    rate_flops_per_s = cluster.device.matmul_flops_per_s
    origin = "measured here" if session.config.cluster.name == "auto" else f"of {cluster.name}"
    session.say(_groups_text(session))
    session.say(f"MFU is against {rate_flops_per_s / 1e12:.3g} TFLOP/s per rank, {origin}")
    with online_steps(session, progressed.step) as online:
        run = _Run(
            session=session,
            listener=listener,
            milestones=milestones,
            recalibrator=recalibrator,
            stop=stop,
            rate_flops_per_s=rate_flops_per_s,
            online=online,
        )
        if progressed.upcoming is not None and progressed.upcoming.requested_with is not None:
            run.requested_with[progressed.step + 1] = progressed.upcoming.requested_with
        with (
            told_if_full(session.world, "between two steps", LESS_STATE),
            PlanSource[PlanRequest](
                session.world,
                session.groups.world,
                request_of=run.request,
                make_plan=plan_batch,
                make_fallback=fallback_plan,
                timeout_s=session.config.planner.timeout_s,
                say=session.say,
                hurries=lambda: stop.is_set,
            ) as plans,
            ClipLoader[ClipArrays](
                session.prepared.train.read,
                session.config.data.read_ahead_mb * 10**6,
                size_of=partial(array_bytes, session),
            ) as loader,
            CheckpointSaver(session) as saver,
            stop.listening(),
        ):
            return run.steps(progressed, plans, loader, saver)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    session: Session
    listener: Listener
    milestones: Milestones
    recalibrator: Recalibrator
    stop: StopRequest
    rate_flops_per_s: float
    online: OnlineSteps | None
    requested_with: dict[int, Cluster] = field(default_factory=dict[int, Cluster])
    clock: StepClock = field(default_factory=StepClock)

    @property
    def _costs(self) -> CostModel:
        return self.session.costs(self.recalibrator.cluster)

    def steps(
        self,
        progressed: Progressed,
        plans: PlanSource[PlanRequest],
        loader: ClipLoader[ClipArrays],
        saver: CheckpointSaver,
    ) -> Finished:
        config = self.session.config
        last = config.run.steps
        best = self.milestones.begin(progressed.step)
        if best is not None:
            self.milestones.keep_best(progressed.step, best, saver)  # its checkpoint was loaded
        if progressed.step >= last or self.milestones.was_stopped:
            return self._finished(progressed, saver, was_stopped=self.milestones.was_stopped)
        plan = self._plan_of(progressed.step, plans, loader, self._known_plan(progressed))
        bad_steps = 0
        self.clock.lap()
        for step in range(progressed.step, last):
            next_plan = self._plan_of(step + 1, plans, loader) if step + 1 < last else None
            report = self._step(step, plan, next_plan, loader)
            progressed = progressed.after(
                report.outcome.loss if report.outcome.is_updated else None, report.left_out
            )
            self.recalibrator.after_step(step, report.launches)
            report = replace(
                report,
                num_skipped=progressed.step - progressed.num_updates,
                num_left_out=len(progressed.left_out),
                rank_scores=self.recalibrator.scores,
                rank_speeds=self.recalibrator.cluster.speeds,
            )
            do_together(self.session.world, self.session.groups.world, partial(self._tell, report))
            self._say_what_was_left_out(report, plans)
            bad_steps = 0 if report.outcome.is_updated else bad_steps + 1
            self._end_if_too_many(bad_steps, report, saver)
            done = step + 1
            wants_stop = report.outcome.wants_stop
            every = config.checkpoint.every
            is_saved = wants_stop or done == last or bool(every and done % every == 0)
            with self.clock.paused():
                saver.advance()
                if is_saved:
                    self._save(progressed, next_plan, saver)
            if wants_stop and done < last:
                return self._finished(progressed, saver, was_stopped=True)
            with self.clock.paused():
                best = self.milestones.reach(done)
                if best is not None:
                    self._keep_best(progressed, best, saver, next_plan, is_saved=is_saved)
            if self.milestones.was_stopped:
                if not is_saved and best is None:
                    self._save(progressed, next_plan, saver)
                return self._finished(progressed, saver, was_stopped=True)
            if next_plan is not None:
                plan = next_plan
        return self._finished(progressed, saver, was_stopped=False)

    def _known_plan(self, progressed: Progressed) -> PlacedPlan | None:
        """The next step's plan as a checkpoint holds it, if it can still be run."""
        if self.online is not None or progressed.upcoming is None:
            return None  # it counts on what was encoded ahead, which no checkpoint holds
        plan = progressed.upcoming.plan
        return plan if still_fits(self._costs, plan) else None  # else it may be what ended the run

    def _keep_best(
        self,
        progressed: Progressed,
        loss: float,
        saver: CheckpointSaver,
        next_plan: PlacedPlan | None,
        *,
        is_saved: bool,
    ) -> None:
        """Keep the state that has the lowest validation loss so far."""
        if not is_saved:
            self._save(progressed, next_plan, saver)
        self.milestones.keep_best(progressed.step, loss, saver)

    def request(self, step: int) -> PlanRequest:
        """What the plan of a step depends on; called on rank 0."""
        cluster = self.cluster_for(step)
        if self.online is not None:
            return self.online.request(step, cluster)
        return self.session.plan_request(step, cluster)

    def cluster_for(self, step: int) -> Cluster:
        """What the plan of a step is asked for with; rank 0, which plans, remembers it."""
        return self.requested_with.setdefault(step, self.recalibrator.cluster)

    def _end_if_too_many(self, bad_steps: int, report: StepReport, saver: CheckpointSaver) -> None:
        most = self.session.config.run.max_bad_steps
        if most and bad_steps >= most:
            with suppress(CheckpointError):
                saver.finish()
            reason = self._why_skipped(report)
            raise too_many_bad_steps(self.session, bad_steps, report.step, reason)

    def _save(
        self, progressed: Progressed, next_plan: PlacedPlan | None, saver: CheckpointSaver
    ) -> None:
        """Begin a checkpoint of the present state."""
        saver.begin(state.train_state(self.session, self._saved(progressed, next_plan)))

    def _saved(self, progressed: Progressed, next_plan: PlacedPlan | None) -> Progressed:
        """With all that a resumed run needs to plan as this one does."""
        upcoming = None
        if next_plan is not None:
            requested_with = self.requested_with.get(next_plan.step + 1)
            upcoming = Upcoming(plan=next_plan, requested_with=requested_with)
        return replace(progressed, cluster=self.recalibrator.cluster, upcoming=upcoming)

    def _finished(
        self, progressed: Progressed, saver: CheckpointSaver, *, was_stopped: bool
    ) -> Finished:
        if self.online is not None:
            self.online.drop()
        self.session.optimizer.settle()
        saver.finish()
        stopped_by = None
        if was_stopped:
            world, everyone = self.session.world, self.session.groups.world
            stopped_by = largest(world, everyone, self.stop.number)
        return Finished(
            step=progressed.step,
            num_skipped=progressed.step - progressed.num_updates,
            stopped_by=stopped_by,
            losses=progressed.losses,
            cluster=self.recalibrator.shared_cluster(),
            left_out=tuple(sorted(progressed.left_out)),
            save_stalls_s=tuple(saver.stalls_s),
        )

    def _plan_of(
        self,
        step: int,
        plans: PlanSource[PlanRequest],
        loader: ClipLoader[ClipArrays],
        known: PlacedPlan | None = None,
    ) -> PlacedPlan:
        """The plan of a step; starts reading its clips, and planning the step after it."""
        self.session.recorder.progress.change("plan")
        plan = known or plans.obtain(step)
        self.requested_with.pop(step, None)
        self.session.recorder.finish(step=step, planner="plan")  # sending it belongs to no step
        if step + 1 < self.session.config.run.steps:
            plans.request(step + 1)
        items = self.session.step_batch(step).items
        slots = slots_of_rank(plan, self.session.world.rank)
        if self.online is not None:
            self.online.expect(plan)
            slots = [slot for slot in slots if not self.online.made_in(step, slot)]
        loader.prefetch(items[slot] for slot in slots)
        return plan

    def _step(
        self,
        step: int,
        plan: PlacedPlan,
        next_plan: PlacedPlan | None,
        loader: ClipLoader[ClipArrays],
    ) -> StepReport:
        session = self.session
        chosen = self.session.step_batch(step)
        following = self.session.step_batch(step + 1).batch if self.online is not None else None
        texts = launch_texts(chosen.batch, plan, session.world.rank, following)
        session.recorder.progress.begin_step(step, texts)
        lr = learning_rate(session.config.optimizer, step, session.config.run.steps)
        costs = self._costs
        with told_if_stranded(session.world, session.run_dir, costs, chosen.batch, plan):
            outcome = run_step(
                session,
                chosen,
                plan,
                read=loader.take,
                lr=lr,
                wants_stop=lambda: self.stop.is_set,
                online=self.online.of_step(plan, next_plan) if self.online is not None else None,
                settles=False,
            )
        given_up = [plan.launches[index] for index in outcome.given_up]
        launches = tuple(
            each
            for each in measured_launches(session, plan, outcome.log, outcome.vote.is_kept)
            if each.launch not in given_up
        )
        figures = step_figures(
            session, costs, chosen.batch, plan, outcome, period_s=self.clock.lap()
        )
        trace = None
        if self._is_traced(step) and session.world.size <= _MAX_SHOWN_RANKS:
            trace = shared_trace(session, outcome.log)
        return StepReport(
            step=step,
            batch=chosen.batch,
            plan=plan,
            outcome=outcome,
            trace=trace,
            launches=launches,
            lr=lr,
            modelled_step_s=plan.makespan_s + costs.step_overhead_s(),
            figures=figures,
            utilisation=figures.utilisation(self.rate_flops_per_s),
        )

    def _is_traced(self, step: int) -> bool:
        every = self.session.config.logging.trace_every
        return bool(every) and step % every == 0

    def _tell(self, report: StepReport) -> None:
        self._remember_memory(report)
        if self.online is not None:
            self.online.check()
        if self._is_traced(report.step):
            self.listener.on_rank_log(report.outcome.log)
        self.listener.on_step(report)

    def _remember_memory(self, report: StepReport) -> None:
        """Plan with more for launches that ran out of memory, in this run and after it."""
        session = self.session
        for index in report.outcome.given_up:
            found = memory_report(self._costs, report.batch, report.plan, index)
            session.raised_reserves.take(found)
            if session.world.rank == 0:
                session.say(f"{found.text}; {write_report(found, session.run_dir)}")

    def _say_what_was_left_out(self, report: StepReport, plans: PlanSource[PlanRequest]) -> None:
        """Name clips and say why a step was skipped; plans in the making count with it."""
        if report.outcome.given_up:
            plans.renew()
        if self.online is not None and (report.left_out or not report.outcome.is_updated):
            self.online.say_full(report.step, len(report.batch.clips))
        for name in sorted(report.left_out):
            self.session.say(f"{step_text(report.step)}: clip {name!r} cannot be read; left out")
        if not report.outcome.is_updated:
            self.session.say(f"{step_text(report.step)}: {self._why_skipped(report)}; step skipped")

    def _why_skipped(self, report: StepReport) -> str:
        return why_skipped(self.session, report.batch, report.plan, report.outcome)


def _groups_text(session: Session) -> str:
    """How many process groups there are, and what they take of each GPU."""
    groups, most = session.groups, session.groups.most_on_a_rank
    if session.world.size == 1:
        return "one rank, which needs no process group"
    text = f"{count_text(groups.num_groups, 'process group')}, at most {most} of them on one rank"
    if session.world.device.type != "cuda":
        return text
    return f"{text}: about {bytes_text(most * COMMUNICATOR_BYTES)} of each GPU for NCCL, estimated"

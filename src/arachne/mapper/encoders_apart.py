"""Encoders on other GPUs than the launches that they feed: what knowing inputs is compared with."""

from dataclasses import replace

from arachne.core.cluster import Cluster
from arachne.core.plan import Plan


def encoders_apart(plan: Plan, cluster: Cluster) -> Plan:
    """The plan with the encoders of this step's batch one node further; half a node, if it is one.

    So it comes out if encoder and training launches are placed each for themselves: degrees, nodes
    spanned and order are as planned, but results are made where nobody needs them. Launches may
    overlap on a slot after that, so that times have to be found anew once the plan is on ranks.
    """
    shift = cluster.gpus_per_node if cluster.num_nodes > 1 else cluster.num_gpus // 2
    launches = [
        launch
        if launch.cascade.module == "dit" or launch.cascade.steps_ahead
        else replace(launch, gpus=tuple(sorted((g + shift) % plan.num_gpus for g in launch.gpus)))
        for launch in plan.launches
    ]
    return replace(plan, launches=tuple(launches))

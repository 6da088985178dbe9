"""Launch specs and rules whose pods are compared whole; ``python -m tests.unit.adapters.k8s.pod_examples`` writes them.

Look at the difference before you commit it: what is written there is what clusters are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.manifest_yaml import manifest_yaml
from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.pod_rules import PodRules, parse_pod_rules
from frenzy.core.values.cluster import Node, NodeAllocation, Placement
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import CheckpointSpec, DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan
from frenzy.core.values.units import GIB, MIB
from frenzy.core.values.workload import WorkloadSpec

FOLDER: Final = Path(__file__).parents[3] / "data/kubernetes/pods"
RUN_KEY: Final = "123e45678901"
RUN_ROOT: Final = "/var/lib/frenzy/runs"
PLAIN: Final = (
    "image: frenzy-trainer:1\nnamespace: train\nrun_directory: {claim: runs, mount_path: /var/lib/frenzy/runs}\n"
)
OBJECT_STORE: Final = "image: frenzy-trainer:1\nnamespace: train\nenv_from_secrets: [store-login]\n"
VIRTUAL: Final = GpuType(name="v-small", memory_bytes=384 * MIB, flops_per_s=2e10, kind=DeviceKind.VIRTUAL)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    """That of the workers."""
    (only,) = (each for each in pod["spec"]["containers"] if each["name"] == labels.CONTAINER)
    return dict(only)


def job(**changes: Any) -> TrainingJob:
    """A job with an environment and a secret."""
    given = TrainingJob(
        name="nightly",
        model=ModelSpec(config={"model_type": "gpt2"}),
        data=DataSpec(path="/data/*.txt"),
        training=TrainingSpec(max_steps=10),
        team="research",
        queue="night",
        env={"EXTRA": "cost is $(PRICE)"},
        secrets={"HF_TOKEN": "k8s:hub/token"},
    )
    return replace(given, **changes)


def plan(gpu: GpuType, num_gpus: int, *, host_bytes: int = 0) -> ResourcePlan:
    return ResourcePlan(
        gpu_type=gpu.name,
        num_gpus=num_gpus,
        dp=num_gpus,
        tp=1,
        zero_stage=2 if num_gpus > 1 else 1,
        micro_batch_size=4,
        accumulation_steps=1,
        activation_checkpointing=False,
        memory=MemoryPrediction(
            peak_allocated_bytes=20 * GIB, required_bytes=24 * GIB, host_bytes=host_bytes, at="backward"
        ),
        gpu_memory_bytes=gpu.memory_bytes,
        step_time_s=0.5,
        samples_per_s=64.0,
        predicted_run_s=60.0,
        predicted_cost=1.0,
    )


def node(name: str, gpu: GpuType, num_gpus: int, **known: str) -> Node:
    given = {labels.HOSTNAME: name, labels.GPU_RESOURCE: "nvidia.com/gpu"}
    return Node(
        name=name,
        gpu_type=gpu.name,
        num_gpus=num_gpus,
        host_memory_bytes=512 * GIB,
        num_cpus=96,
        labels={**given, **{key.replace("__", "/"): value for key, value in known.items()}},
    )


def spec(gpu: GpuType, *nodes: Node, run_root: str = RUN_ROOT, host_bytes: int = 0, **changes: Any) -> LaunchSpec:
    """All GPUs of all ``nodes`` for one attempt."""
    allocations = tuple(NodeAllocation(node=each.name, num_gpus=each.num_gpus) for each in nodes)
    return LaunchSpec(
        run_key=RUN_KEY,
        attempt=2,
        job=job(**changes),
        plan=plan(gpu, sum(each.num_gpus for each in nodes), host_bytes=host_bytes),
        gpu=gpu,
        placement=Placement(allocations=allocations),
        run_dir=f"{run_root}/{RUN_KEY}",
        nodes=nodes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    spec: LaunchSpec
    rules_yaml: str = PLAIN

    @property
    def rules(self) -> PodRules:
        return parse_pod_rules(self.rules_yaml)

    @property
    def allows(self) -> set[str]:
        """What the administrator lets its overlays do beyond what every pod may."""
        return {privilege for each in self.rules.overlays for privilege in each.allow}

    @property
    def text(self) -> str:
        return manifest_yaml(pods_of(self.spec, self.rules))


def _card(card: str, **changes: Any) -> GpuType:
    return replace(CATALOGUE[card].gpu, **changes)


def _renamed(node_: Node, resource: str) -> Node:
    return replace(node_, labels={**node_.labels, labels.GPU_RESOURCE: resource})


A100: Final = _card("a100-80")
H100: Final = _card("h100")
MIG: Final = _card("a100-80", name="a100-80-mig-1g.10gb", memory_bytes=9856 * MIB)
SHARED: Final = _card("l40s", name="l40s-shared-4", memory_bytes=CATALOGUE["l40s"].gpu.memory_bytes // 4)

CROWDED_RULES: Final = f"""{PLAIN}
priority_class: training
scheduler_name: kai-scheduler
runtime_class: nvidia
node_selector: {{topology.kubernetes.io/zone: eu-1a}}
tolerations:
  - {{key: team, operator: Equal, value: research, effect: NoSchedule}}
  - {{key: spot, operator: Exists, effect: NoExecute, toleration_seconds: 30}}
labels: {{kai.scheduler/queue: research}}
annotations: {{example.org/owner: ml platform}}
network_interface: eth0
env: {{NCCL_DEBUG: INFO}}
"""
BARE_RULES: Final = """
image: k8s.local/pause:3
image_pull_policy: Never
run_directory: {host_path: /var/lib/frenzy/runs, mount_path: /var/lib/frenzy/runs}
volumes:
  - {name: usr, host_path: /usr, mount_path: /usr}
  - {name: settings, config_map: training, mount_path: /etc/training}
  - {name: cloud, secret: cloud-login, mount_path: /etc/cloud}
  - {name: data, claim: data, mount_path: /data, sub_path: text}
python: [/opt/venv/bin/python, -B]
extra_host_memory_per_gpu: 2 GiB
shm_per_gpu: 64 MiB
ephemeral_storage: 2 GiB
cpu_limit_per_gpu: 1
"""

# InfiniBand through NVIDIA's network operator, for attempts on several nodes.
RDMA_RULES: Final = f"""{PLAIN}
overlays:
  - when: {{gpu_types: [a100-80], multi_node: true}}
    allow: [capabilities]
    resources_per_gpu: {{rdma/ib: 1}}
    patch:
      metadata: {{annotations: {{k8s.v1.cni.cncf.io/networks: ib-0}}}}
      spec:
        containers:
          - name: trainer
            env: [{{name: NCCL_IB_HCA, value: mlx5}}, {{name: NCCL_DEBUG, value: INFO}}]
            securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}
  - when: {{queues: [day]}}
    patch: {{spec: {{priorityClassName: never}}}}
"""
# Amazon's EFA, whose adapters are counted per node and reached through huge pages.
EFA_RULES: Final = f"""{PLAIN}
overlays:
  - when: {{gpu_types: [h100]}}
    resources_per_gpu: {{vpc.amazonaws.com/efa: 4}}
    patch:
      spec:
        containers:
          - name: trainer
            env: [{{name: FI_PROVIDER, value: efa}}]
            resources: {{limits: {{hugepages-2Mi: 5120Mi}}, requests: {{hugepages-2Mi: 5120Mi}}}}
"""
# Google's GPUDirect-TCPX: the host's network, a privileged helper beside the workers, and its socket.
TCPX_RULES: Final = f"""{PLAIN}
overlays:
  - when: {{gpu_types: [h100], queues: [night]}}
    allow: [host_network, host_path, security_context]
    patch:
      spec:
        hostNetwork: true
        dnsPolicy: ClusterFirstWithHostNet
        containers:
          - name: tcpx-daemon
            image: example.org/tcpgpudmarxd-dev:v1
            command: [/tcpgpudmarxd/build/app/tcpgpudmarxd]
            securityContext: {{privileged: true, runAsNonRoot: false, runAsUser: 0}}
            volumeMounts:
              - {{name: libraries, mountPath: /usr/local/nvidia/lib64}}
              - {{name: sockets, mountPath: /run/tcpx}}
          - name: trainer
            env:
              - {{name: NCCL_NET, value: GPUDirectTCPX_v7}}
              - {{name: NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX, value: /run/tcpx}}
            volumeMounts: [{{name: sockets, mountPath: /run/tcpx}}]
        volumes:
          - {{name: libraries, hostPath: {{path: /home/kubernetes/bin/nvidia/lib64}}}}
          - {{name: sockets, emptyDir: {{}}}}
"""

EXAMPLES: Final[Mapping[str, Example]] = {
    "one-gpu": Example(spec=spec(A100, node("gpu-1", A100, 1))),
    "eight-gpus-on-one-node": Example(spec=spec(A100, node("gpu-1", A100, 8), host_bytes=100 * GIB)),
    "two-nodes-of-eight": Example(spec=spec(A100, node("gpu-1", A100, 8), node("gpu-2", A100, 8))),
    "mig": Example(spec=spec(MIG, _renamed(node("gpu-1", MIG, 1), "nvidia.com/mig-1g.10gb"))),
    "shared": Example(spec=spec(SHARED, _renamed(node("gpu-1", SHARED, 1), "nvidia.com/gpu.shared"))),
    "object-store": Example(
        spec=spec(A100, node("gpu-1", A100, 1), run_root="s3://runs/frenzy"), rules_yaml=OBJECT_STORE
    ),
    "warm-start": Example(
        spec=spec(A100, node("gpu-1", A100, 1), checkpoint=CheckpointSpec(warm_start="456789012345")),
        rules_yaml=PLAIN
        + "volumes: [{name: data, claim: runs, sub_path: data, mount_path: /var/lib/frenzy/runs/data}]\n",
    ),
    "private-registry": Example(
        spec=spec(A100, node("gpu-1", A100, 1)),
        rules_yaml=PLAIN.replace("frenzy-trainer:1", "registry.example:5000/ml/frenzy-trainer:1")
        + "image_pull_policy: Always\nimage_pull_secrets: [registry-login, mirror-login]\n",
    ),
    "tolerations-and-priority": Example(spec=spec(A100, node("gpu-1", A100, 1)), rules_yaml=CROWDED_RULES),
    "kueue": Example(
        spec=spec(A100, node("gpu-1", A100, 8), node("gpu-2", A100, 8)), rules_yaml=f"{PLAIN}kueue_queue: research\n"
    ),
    "rdma-on-two-nodes": Example(
        spec=spec(A100, node("gpu-1", A100, 8), node("gpu-2", A100, 4)), rules_yaml=RDMA_RULES
    ),
    "efa": Example(spec=spec(H100, node("gpu-1", H100, 8)), rules_yaml=EFA_RULES),
    "gpudirect-tcpx": Example(spec=spec(H100, node("gpu-1", H100, 8)), rules_yaml=TCPX_RULES),
    "virtual-gpus-without-an-image": Example(
        spec=spec(VIRTUAL, replace(node("lap-1", VIRTUAL, 2), labels={labels.HOSTNAME: "lap-1.local"})),
        rules_yaml=BARE_RULES,
    ),
    "virtual-gpus-that-are-a-resource": Example(
        spec=spec(VIRTUAL, node("lap-1", VIRTUAL, 2), node("lap-2", VIRTUAL, 1))
    ),
    "script-in-an-image-of-its-own": Example(
        spec=spec(
            A100,
            node("gpu-1", A100, 2),
            workload=WorkloadSpec(command=("python", "train.py"), image="ghcr.io/me/train:1"),
        ),
        rules_yaml=f"{PLAIN}workload_images: ['ghcr.io/me/*']\n",
    ),
    "autoscaled-group": Example(
        spec=spec(
            A100,
            replace(
                node("pool-a/1", A100, 8),
                labels={
                    labels.NODE_GROUP: "pool-a",
                    labels.GPU_RESOURCE: "nvidia.com/gpu",
                    "cloud.google.com/gke-nodepool": "pool-a",
                },
            ),
        )
    ),
}


def write() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, example in EXAMPLES.items():
        (FOLDER / f"{name}.yaml").write_text(example.text, encoding="utf-8")


if __name__ == "__main__":
    write()

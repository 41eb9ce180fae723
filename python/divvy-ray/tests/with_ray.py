"""Ray itself, with two simulated GPUs: `python -m unittest tests.with_ray` in an environment with Ray and this package.

`DIVVY_TEST_PROGRAMS` names the folder of `divvy` and its libraries. Without it, or without Ray, the tests are skipped
with the reason. `DIVVY_RAY_ACTORS`, `DIVVY_RAY_TASKS` and `DIVVY_RAY_SECONDS`
change the sizes.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

PROGRAMS = os.environ.get("DIVVY_TEST_PROGRAMS", "")
ACTORS = int(os.environ.get("DIVVY_RAY_ACTORS", "6"))
TASKS = int(os.environ.get("DIVVY_RAY_TASKS", "0"))
#: Seconds after which the storm starts no more tasks.
SECONDS = float(os.environ.get("DIVVY_RAY_SECONDS", "3600"))
MODELS = os.environ.get("DIVVY_RAY_SIM", "a100-80gb:2")
GIB = 1 << 30
#: A limit of 0.25 is at most this part of 80 GB; contexts of 0.41 GiB count.
QUARTER_GIB = 19.8

DIVVY = os.path.join(PROGRAMS, "divvy")


def missing() -> Optional[str]:
    if not os.path.isfile(DIVVY):
        return "DIVVY_TEST_PROGRAMS does not name the folder of `divvy`"
    if importlib.util.find_spec("ray") is None:
        return "this Python has no Ray: pip install ray"
    if "_divvy_ray" not in sys.modules:
        return "the package divvy-ray is not installed in this environment"
    return None


def divvy(*words: str) -> "subprocess.CompletedProcess[str]":
    around = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "DIVVY_SLICE")}
    return subprocess.run([DIVVY, *words], capture_output=True, text=True, timeout=60, check=False, env=around)


def items(*words: str) -> list[dict[str, Any]]:
    done = divvy(*words, "-o", "json")
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    listed: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return listed


def slices() -> list[dict[str, Any]]:
    return [item for item in items("slice", "ls") if item["uid"].startswith("ray-")]


def until(what: str, condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


def ray_workers(driver: int) -> Iterator[int]:
    """The pids of the workers below this driver's raylet that run a task.

    Of one that has not registered, raylet notices the end only after `worker_register_timeout_seconds`, and starts no
    other worker in its place until then.
    """
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            names[pid] = (folder / "cmdline").read_bytes()
    for pid, name in names.items():
        above = parents.get(parents[pid])
        # Raylet's agents have such names too, and a worker is IDLE before it registers.
        is_busy = name.startswith(b"ray::") and b"Agent" not in name and b"IDLE" not in name
        if above == driver and is_busy:
            yield pid


class Gpu:
    """The first GPU that this process sees, by the driver's own functions."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cuda.cuInit(0)
        device, uuid, total = ctypes.c_int(), (ctypes.c_char * 16)(), ctypes.c_size_t()
        self.found = self.cuda.cuDeviceGet(ctypes.byref(device), 0)
        self.cuda.cuDeviceGetUuid_v2(uuid, device)
        self.cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        self.uuid, self.total = bytes(uuid).hex(), total.value
        self.context = self.cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, device)

    def take(self, size: int) -> int:
        return int(self.cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size)))

    def fill(self, step: int = GIB // 4) -> float:
        """Allocates until memory is refused; the sum in GiB."""
        taken = 0
        while self.take(step) == 0:
            taken += step
        return taken / GIB


#: A program of its own that reports the memory that it sees and gets, in GiB.
PROBE = """
import sys; sys.path.insert(0, {tests!r})
from with_ray import Gpu
gpu = Gpu(); print(gpu.total / 2**30, gpu.fill())
"""


def look() -> dict[str, Any]:
    """What a task sees of its GPU."""
    import ray

    gpu = Gpu()
    return {
        "pid": os.getpid(),
        "rays": [str(gpu) for gpu in ray.get_gpu_ids()],
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "uuid": gpu.uuid,
        "total": gpu.total / GIB,
        "context": gpu.context,
        "got": gpu.fill(),
        "job": os.environ.get("DIVVY_JOB_ID"),
    }


class Cluster(unittest.TestCase):
    """A daemon with simulated GPUs, and a Ray of one node."""

    models = MODELS
    folder: Path
    uuids: dict[str, str]

    @classmethod
    def setUpClass(cls) -> None:
        why = missing()
        if why is not None:
            print(f"skipped: {why}", file=sys.stderr)
            raise unittest.SkipTest(why)
        import ray

        cls.folder = Path(tempfile.mkdtemp(prefix="divvy-ray."))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        home = cls.folder / "home"
        home.mkdir()
        os.environ.update(
            DIVVY_HOME=str(home),
            DIVVY_RAY_DIVVY=DIVVY,
            # The simulator is the driver: a worker needs it before it has a slice.
            LD_LIBRARY_PATH=str(home / "sim/lib"),
            DIVVY_SIM=cls.models,
            DIVVY_SIM_STATE=str(home / "sim/state"),
            RAY_AUTH_MODE="disabled",
            # Ray's own 15 would starve the workers on a busy machine.
            RAY_worker_niceness="0",
            # As many as the storm has tasks at a time; Ray's own number is that of the processors.
            RAY_worker_maximum_startup_concurrency="8",
            # Ray gives up after 60 s, which a start takes where the processors have much else to do.
            RAY_worker_register_timeout_seconds="180",
            PYTHONDONTWRITEBYTECODE="1",
        )
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        cls.start_daemon()
        cls.addClassCleanup(divvy, "daemon", "--stop")
        cls.uuids = {gpu["uuid"].removeprefix("GPU-").replace("-", ""): str(gpu["index"]) for gpu in items("gpus")}
        ray.init(
            num_cpus=4,
            num_gpus=len(cls.uuids),
            include_dashboard=False,
            object_store_memory=80_000_000,
            log_to_driver=False,
            _temp_dir=str(cls.folder / "r"),
        )
        cls.addClassCleanup(ray.shutdown)

    @classmethod
    def start_daemon(cls) -> None:
        done = divvy("daemon", "--sim", cls.models, "--detached")
        if done.returncode != 0:
            raise AssertionError(done.stderr)

    @classmethod
    def daemon_pid(cls) -> int:
        text = (cls.folder / "home/daemon.lock").read_text()
        return int(text.split()[0])

    def no_slices(self, seconds: float = 30.0) -> None:
        until("all slices are released", lambda: not slices(), seconds)


class Placement(Cluster):
    def test_a_actors_sit_where_ray_and_divvy_both_put_them_within_their_limit(self) -> None:
        import ray

        class Actor:
            def look(self) -> dict[str, Any]:
                return look()

        actor = ray.remote(Actor)
        parts = [0.04, 0.03] if ACTORS > 8 else [0.25, 0.125]
        amounts = [parts[i % 2] for i in range(ACTORS)]
        begin = time.monotonic()
        actors = [actor.options(num_gpus=a, num_cpus=0, runtime_env={"divvy": {}}).remote() for a in amounts]
        seen = ray.get([one.look.remote() for one in actors], timeout=600)
        took = time.monotonic() - begin
        held = {item["job"]: item for item in slices()}
        agree = 0
        for amount, saw in zip(amounts, seen):
            own = held[saw["job"]]["slices"][0]
            limit = own["memory_limit_bytes"] / GIB
            self.assertEqual(own["share"], round(amount * 1000), saw)
            self.assertEqual(saw["total"], limit)
            self.assertLessEqual(saw["got"], limit)
            self.assertGreater(saw["got"], limit - 0.41 - 0.25)
            agree += self.uuids[saw["uuid"]] == saw["rays"][0] == str(own["gpu_index"]) == saw["visible"]
        gpus = sorted({saw["rays"][0] for saw in seen})
        print(f"actors {len(seen)} on GPUs {gpus}: both placements agree in {agree}; {took:.1f} s")
        self.assertEqual(agree, len(actors))
        for one in actors:
            ray.kill(one)
        self.no_slices()
        ended = {job["id"]: job for job in items("ps", "-a")}
        for saw in seen:
            job = ended[saw["job"]]
            self.assertEqual((job["state"], job["end_reason"]), ("ended", "cancelled"), job)
            self.assertIn("ended before `divvy slice rm`", job["end_detail"])

    def test_b_an_end_of_its_own_releases_the_slice_and_a_killed_one_is_cancelled(self) -> None:
        import ray

        class Actor:
            def job(self) -> str:
                return os.environ["DIVVY_JOB_ID"]

            def leave(self) -> None:
                ray.actor.exit_actor()

            def signal(self, number: int) -> None:
                os.kill(os.getpid(), number)

        kind = ray.remote(Actor)
        ends: dict[str, tuple[str, Any]] = {
            "exit_actor": ("released", lambda actor: actor.leave.remote()),
            "SIGTERM": ("released", lambda actor: actor.signal.remote(signal.SIGTERM)),
            "out of scope": ("released", lambda actor: None),
            "ray.kill": ("cancelled", ray.kill),
            "SIGKILL": ("cancelled", lambda actor: actor.signal.remote(signal.SIGKILL)),
            "a crash": ("cancelled", lambda actor: actor.signal.remote(signal.SIGSEGV)),
        }
        jobs = {}
        for how, (_, end) in ends.items():
            actor = kind.options(num_gpus=0.125, num_cpus=0, runtime_env={"divvy": {}}).remote()
            jobs[how] = ray.get(actor.job.remote(), timeout=120)
            end(actor)
            del actor
        self.no_slices(60)
        ended = {job["id"]: job["end_reason"] for job in items("ps", "-a")}
        seen = {how: ended[job] for how, job in jobs.items()}
        print("ends:", seen)
        self.assertEqual(seen, {how: outcome for how, (outcome, _) in ends.items()})

    def test_b_a_child_without_variables_stays_in_the_slice_of_root(self) -> None:
        import ray

        if os.geteuid() != 0:
            self.skipTest("as an ordinary user the slice is held by LD_PRELOAD")

        def child() -> str:
            code = PROBE.format(tests=os.path.dirname(os.path.abspath(__file__)))
            keep = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DIVVY_SIM", "DIVVY_SIM_STATE")}
            done = subprocess.run([sys.executable, "-c", code], env=keep, capture_output=True, text=True, check=True)
            return done.stdout

        task = ray.remote(child).options(num_gpus=0.25, runtime_env={"divvy": {}})
        total, got = map(float, ray.get(task.remote(), timeout=120).split())
        print(f"a child without variables: sees {total:.2f} GiB, gets {got:.2f} GiB")
        self.assertLess(total, QUARTER_GIB)
        self.assertLess(got, QUARTER_GIB)

    def test_c_a_worker_serves_one_task_with_gpus_and_its_limit_follows_the_task(self) -> None:
        import ray

        # Ray keeps such workers: its default `max_calls=1` needs `num_gpus` in the decorator.
        task = ray.remote(look)
        for amount in (0.25, 0.5, 0.125, 0.25, 1):
            saw = ray.get(task.options(num_gpus=amount, runtime_env={"divvy": {}}).remote(), timeout=120)
            self.assertAlmostEqual(saw["total"], 79.15 * amount, delta=0.3)
            self.assertLessEqual(saw["got"], saw["total"])
        self.no_slices()

    def test_d_a_task_without_gpus_gets_no_memory_and_leaves_a_good_worker_alone(self) -> None:
        import ray

        def plain() -> int:
            return os.getpid()

        task = ray.remote(plain).options(runtime_env={"divvy": {}})
        pids = {ray.get(task.remote(), timeout=120) for _ in range(4)}
        self.assertLess(len(pids), 4, "workers of tasks without GPUs are kept")
        saw = ray.get(ray.remote(look).options(runtime_env={"divvy": {}}).remote(), timeout=120)
        self.assertEqual((saw["got"], saw["job"]), (0.0, None))
        # That worker's limiter has decided, so the next task has another one.
        again = ray.get(ray.remote(look).options(num_gpus=0.25, runtime_env={"divvy": {}}).remote(), timeout=120)
        self.assertNotEqual(again["pid"], saw["pid"])
        self.assertGreater(again["got"], 18)
        self.no_slices()

    def test_e_several_gpus_and_a_placement_group(self) -> None:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        def visible() -> tuple[Optional[str], int]:
            cuda = ctypes.CDLL("libcuda.so.1")
            cuda.cuInit(0)
            count = ctypes.c_int()
            cuda.cuDeviceGetCount(ctypes.byref(count))
            return os.environ.get("CUDA_VISIBLE_DEVICES"), count.value

        both = ray.remote(visible).options(num_gpus=2, runtime_env={"divvy": {}})
        self.assertEqual(ray.get(both.remote(), timeout=120), ("0,1", 2))
        self.no_slices()
        group = placement_group([{"GPU": 1, "CPU": 1}])
        ray.get(group.ready(), timeout=60)
        within = PlacementGroupSchedulingStrategy(placement_group=group)
        task = ray.remote(look).options(num_gpus=0.5, scheduling_strategy=within, runtime_env={"divvy": {}})
        saw = ray.get(task.remote(), timeout=120)
        jobs = items("ps", "-a")[-2:]
        self.assertAlmostEqual(saw["total"], 39.57, delta=0.3, msg=f"{saw} {jobs}")
        self.assertEqual(self.uuids[saw["uuid"]], saw["rays"][0])
        remove_placement_group(group)
        self.no_slices()

    def test_f_a_refusal_is_in_the_exception_and_nothing_else_in_the_logs(self) -> None:
        import ray

        def greedy() -> None:
            code = Gpu().take(30 * GIB)
            raise MemoryError(f"CUDA error {code}")

        task = ray.remote(greedy).options(num_gpus=0.25, max_retries=0, runtime_env={"divvy": {}})
        with self.assertRaisesRegex(Exception, r"(?s)CUDA error 2.*divvy: refused: cuMemAlloc_v2 requested 30.00 GiB"):
            ray.get(task.remote(), timeout=120)
        modest = ray.remote(lambda: Gpu().take(GIB)).options(num_gpus=0.25, runtime_env={"divvy": {}})
        self.assertEqual(ray.get(modest.remote(), timeout=120), 0)
        logs = list((self.folder / "r/session_latest/logs").glob("worker-*"))
        self.assertGreater(len(logs), 4)
        noise = [line for log in logs for line in log.read_text().splitlines() if "divvy:" in line.lower()]
        # Lines of the limiter itself, about tasks that had no slice (test_d).
        self.assertEqual([line for line in noise if "task-without-num_gpus" not in line], [])


class Failures(Cluster):
    def fails(self, expected: str, **options: Any) -> str:
        """A task and an actor fail with this text; the text of the actor's failure."""
        import ray

        class Actor:
            def look(self) -> int:
                return os.getpid()

        def task() -> None:
            return None

        options = {"num_cpus": 0, "num_gpus": 0.25, "runtime_env": {"divvy": {"wait_s": 0.5}}, **options}
        with self.assertRaisesRegex(Exception, expected):
            ray.get(ray.remote(task).options(**options).remote(), timeout=120)
        actor = ray.remote(Actor).options(**options).remote()
        with self.assertRaisesRegex(Exception, expected) as caught:
            ray.get(actor.look.remote(), timeout=120)
        lines = [line for line in str(caught.exception).splitlines() if "divvy" in line or "hint" in line]
        print(f"  {expected!r}:", *lines[-2:], sep="\n    ")
        return str(caught.exception)

    def test_a_amounts_and_gpus_that_divvy_sees_differently(self) -> None:
        self.fails("num_gpus=0.25, but the runtime_env has divvy.gpu=0.5", runtime_env={"divvy": {"gpu": 0.5}})
        self.fails("num_gpus=0.0002 is less than 0.001", num_gpus=0.0002)
        self.fails("divvy has no key 'gpus'", runtime_env={"divvy": {"gpus": 0.5}})
        self.fails("divvy.gpu_memory='8' is not a size", runtime_env={"divvy": {"gpu_memory": "8"}})
        # Divvy's own jobs and slices have the GPUs already, while Ray believes them free.
        for gpu in ("0", "1"):
            self.assertEqual(divvy("slice", "create", f"other-{gpu}", "--gpus-on", gpu, "-g", "0.9").returncode, 0)
        try:
            self.fails("no slice with 0.25 of GPU [01] for this task: ")
        finally:
            divvy("slice", "rm", "other-0", "other-1")

    def test_b_a_limiter_that_is_not_loaded(self) -> None:
        self.fails(
            "libdivvy_preload.so is not in this worker",
            runtime_env={"divvy": {}, "py_executable": f"env -u LD_PRELOAD {sys.executable}"},
        )

    def test_d_a_user_who_unsets_or_sets_the_variables_of_the_limiter(self) -> None:
        import ray

        def shed() -> dict[str, Any]:
            for name in list(os.environ):
                if name == "LD_PRELOAD" or (name.startswith("DIVVY_") and not name.startswith("DIVVY_SIM")):
                    os.environ.pop(name)
            os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
            gpu = Gpu()
            return {"total": gpu.total / GIB, "got": gpu.fill()}

        unset = {"LD_PRELOAD": "", "DIVVY_SLICE": "", "DIVVY_SHIM": "off"}
        scenes = {
            "env_vars": ray.remote(look).options(num_gpus=0.25, runtime_env={"divvy": {}, "env_vars": unset}),
            "in the task": ray.remote(shed).options(num_gpus=0.25, runtime_env={"divvy": {}}),
        }
        for name, task in scenes.items():
            saw = ray.get(task.remote(), timeout=120)
            print(f"  variables unset by {name}: sees {saw['total']:.2f} GiB, gets {saw['got']:.2f} GiB")
            self.assertLess(saw["got"], QUARTER_GIB)
        self.no_slices()

    def test_c_a_daemon_that_restarts_and_one_that_is_gone(self) -> None:
        import ray

        class Actor:
            def look(self) -> dict[str, Any]:
                return look()

        ray.get(ray.remote(look).options(num_gpus=0.25, runtime_env={"divvy": {}}).remote(), timeout=120)
        os.kill(self.daemon_pid(), signal.SIGKILL)
        actor = ray.remote(Actor).options(num_gpus=0.25, num_cpus=0, runtime_env={"divvy": {}}).remote()
        answer = actor.look.remote()
        time.sleep(3)
        self.start_daemon()
        saw = ray.get(answer, timeout=120)
        self.assertGreater(saw["got"], 18)
        ray.kill(actor)
        self.no_slices()
        os.kill(self.daemon_pid(), signal.SIGKILL)
        try:
            # Known to the agent, so that the worker finds out.
            began = time.monotonic()
            task = ray.remote(look).options(num_gpus=0.25, runtime_env={"divvy": {}})
            with self.assertRaisesRegex(Exception, "no slice with 0.25 of GPU [01] for this task: no daemon"):
                ray.get(task.remote(), timeout=120)
            print(f"  no daemon: reported after {time.monotonic() - began:.1f} s")
            # New to the agent.
            self.fails("no daemon", runtime_env={"divvy": {"wait_s": 1}})
        finally:
            self.start_daemon()
        self.no_slices()


class MigMode(Cluster):
    #: A model whose mode changes without a reset.
    models = "h100-80gb:2"

    def test_a_gpu_in_mig_mode_is_refused_by_name(self) -> None:
        import ray

        done = divvy("admin", "gpu", "0", "--mode", "mig")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = divvy("admin", "gpu", "1", "--mode", "mig")
        self.assertEqual(done.returncode, 0, done.stderr)
        task = ray.remote(look).options(num_gpus=0.25, max_retries=0, runtime_env={"divvy": {}})
        with self.assertRaisesRegex(Exception, "no slice with 0.25 of GPU 0 for this task: .*MIG") as caught:
            ray.get(task.remote(), timeout=120)
        print(*[line for line in str(caught.exception).splitlines() if "divvy:" in line or "hint" in line], sep="\n  ")


@unittest.skipIf(missing() is not None or importlib.util.find_spec("starlette") is None, 'no Ray Serve: "ray[serve]"')
class Serve(Cluster):
    def test_replicas_have_the_limit_of_their_fraction_on_their_own_gpu(self) -> None:
        from ray import serve

        class Model:
            def __call__(self) -> dict[str, Any]:
                return look()

        serve.start(proxy_location="Disabled")
        options = {"num_gpus": 0.25, "num_cpus": 0.1, "runtime_env": {"divvy": {}}}
        deployment = serve.deployment(Model).options(num_replicas=2, ray_actor_options=options)
        handle = serve.run(deployment.bind(), name="divvy")
        seen: dict[str, dict[str, Any]] = {}
        end = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < end:
            saw = handle.remote().result(timeout_s=60)
            seen.setdefault(saw["job"], saw)
        for saw in seen.values():
            print(f"replica: GPU {saw['rays'][0]}, sees {saw['total']:.2f} GiB, got {saw['got']:.2f} GiB")
        self.assertEqual(len(seen), 2)
        for saw in seen.values():
            self.assertLess(saw["total"], QUARTER_GIB)
            self.assertGreater(saw["got"], 18)
            self.assertEqual(self.uuids[saw["uuid"]], saw["rays"][0])
        serve.shutdown()
        self.no_slices()


@unittest.skipIf(missing() is not None or importlib.util.find_spec("pyarrow") is None, 'no Ray Train: "ray[train]"')
class Train(Cluster):
    def test_workers_have_the_limit_of_their_fraction(self) -> None:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        said = self.folder / "said"
        said.mkdir()

        def loop(config: dict[str, str]) -> None:
            from ray import train

            saw = look()
            (Path(config["said"]) / f"{train.get_context().get_world_rank()}.json").write_text(json.dumps(saw))

        trainer = DataParallelTrainer(
            loop,
            train_loop_config={"said": str(said)},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5, "CPU": 0.5}),
            run_config=RunConfig(storage_path=str(self.folder / "runs"), worker_runtime_env={"divvy": {}}),
        )
        trainer.fit()
        seen = [json.loads(file.read_text()) for file in sorted(said.iterdir())]
        for saw in seen:
            print(f"train: GPU {saw['rays'][0]}, sees {saw['total']:.2f} GiB, got {saw['got']:.2f} GiB")
        self.assertEqual(len(seen), 2)
        for saw in seen:
            self.assertAlmostEqual(saw["total"], 39.57, delta=0.3)
            self.assertGreater(saw["got"], 38)
            self.assertEqual(self.uuids[saw["uuid"]], saw["rays"][0])
        self.no_slices()


@unittest.skipIf(TASKS == 0, "DIVVY_RAY_TASKS is not set")
class Storm(Cluster):
    """Tasks in random amounts, whose workers are killed at random, while the daemon is killed and started again."""

    def test_tasks_with_random_kills_leave_no_slice_and_none_gets_more_than_its_limit(self) -> None:
        import ray

        dice = random.Random(7)

        def work(amount: float, ends: int) -> dict[str, Any]:
            if ends == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if ends == 1:
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
            gpu = Gpu()
            got = gpu.fill(GIB)
            return {"over": got > gpu.total / GIB or gpu.total / GIB > 79.2 * amount, "got": got}

        task = ray.remote(work)
        waiting: dict[Any, float] = {}
        done = killed = over = refused = broken = empty = sent = shot = 0
        stop = threading.Event()
        restarts = 0

        def restart() -> None:
            nonlocal restarts
            while not stop.wait(dice.uniform(8, 15)):
                with contextlib.suppress(OSError):
                    os.kill(self.daemon_pid(), signal.SIGKILL)
                stop.wait(dice.uniform(0, 2))
                with contextlib.suppress(AssertionError):
                    self.start_daemon()
                    restarts += 1

        def kill_workers() -> None:
            nonlocal shot
            while not stop.wait(dice.uniform(0.5, 3)):
                workers = list(ray_workers(os.getpid()))
                if workers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(dice.choice(workers), signal.SIGKILL)
                        shot += 1

        trouble = [threading.Thread(target=restart), threading.Thread(target=kill_workers)]
        for thread in trouble:
            thread.start()
        begin = time.monotonic()
        try:
            while waiting or (sent < TASKS and time.monotonic() - begin < SECONDS):
                while sent < TASKS and len(waiting) < 8 and time.monotonic() - begin < SECONDS:
                    amount = dice.choice([0.125, 0.25, 0.5, 0.2, 0.333])
                    env = {"divvy": {"wait_s": 300}}
                    options = {"num_gpus": amount, "num_cpus": 0.5, "max_retries": 0, "runtime_env": env}
                    waiting[task.options(**options).remote(amount, dice.randrange(5))] = amount
                    sent += 1
                ready, _ = ray.wait(list(waiting), timeout=60)
                for ref in ready:
                    waiting.pop(ref)
                    try:
                        saw = ray.get(ref)
                        done += 1
                        over += saw["over"]
                        empty += saw["got"] == 0
                    except ray.exceptions.WorkerCrashedError:
                        killed += 1
                    except Exception as error:
                        is_ours = "divvy" in str(error)
                        refused, broken = refused + is_ours, broken + (not is_ours)
                        print(str(error).splitlines()[-2:], file=sys.stderr)
                    if (done + killed + refused + broken) % 50 == 0:
                        print(f"  {done} done, {killed} killed, {time.monotonic() - begin:.0f} s", file=sys.stderr)
        finally:
            stop.set()
            for thread in trouble:
                thread.join(60)
        self.no_slices(60)
        took = time.monotonic() - begin
        print(
            f"storm: {sent} tasks, {done} done, {killed} killed, {shot} workers shot, {refused} without a slice, "
            f"{broken} failed in Ray, {empty} empty, {restarts} "
            f"restarts; over the limit {over}, slices left {len(slices())}; {took:.0f} s"
        )
        self.assertEqual((over, empty, refused, broken), (0, 0, 0, 0))


if __name__ == "__main__":
    unittest.main()

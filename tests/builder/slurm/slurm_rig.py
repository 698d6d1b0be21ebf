#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A whole Slurm on this machine, in a private folder: munged, slurmctld, slurmd. Runs a command under it and stops it.

Usage: slurm_rig.py [--mib N] COMMAND...     The command finds the rig by SLURM_CONF. Its exit status is returned;
77: skipped, and the last line says why (no root, no Slurm). --mib: the memory that the node claims."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import List, Optional

PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo"]
NODE_MIB = 1500  # of memory, as the node claims it unless told otherwise


class RigError(Exception):
    pass


def skip(reason: str) -> None:
    print("skipped: " + reason)
    sys.exit(77)


def free_ports(count: int) -> List[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


# OverMemoryKill and a look at every second make the memory limit real without control groups. Jobs are forgotten soon,
# so that this can be tested too; nothing is mailed, nothing is accounted for.
CONFIGURATION = """
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,batch_sched_delay=1
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
ReturnToService=2
KillWait=5
MinJobAge=20
InactiveLimit=0
SlurmctldTimeout=300
SlurmdTimeout=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Boards=1 SocketsPerBoard=1 CoresPerSocket={cores} ThreadsPerCore=1 \
RealMemory={memory} State=UNKNOWN
PartitionName=build Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes={host} MaxTime=INFINITE State=DOWN
"""


class Rig:
    """started() and stop(); every daemon runs in the foreground as a child of this process."""

    def __init__(self, node_mib: int) -> None:
        self.node_mib = node_mib
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mica-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.children: List[subprocess.Popen] = []
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def daemon(self, *words: str) -> None:
        log = open(self.folder / (pathlib.Path(words[0]).name + ".out"), "w")
        self.children.append(
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
        )
        log.close()

    def said(self) -> str:
        texts = []
        for file in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")):
            lines = file.read_text(errors="replace").splitlines()[-8:]
            texts += ["%s: %s" % (file.name, line) for line in lines]
        return "\n".join(texts)

    def wait(self, what: str, ready, seconds: float = 60) -> None:
        deadline = time.time() + seconds
        while not ready():
            dead = [c for c in self.children if c.poll() is not None]
            if dead or time.time() > deadline:
                why = "%s ended" % dead[0].args[0] if dead else "no answer in %d s" % seconds
                raise RigError("%s: %s\n%s" % (what, why, self.said()))
            time.sleep(0.2)

    def start(self) -> None:
        munge = self.folder / "munge"
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir()
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        controller_port, node_port = free_ports(2)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=self.folder, host=socket.gethostname().split(".")[0], cores=os.cpu_count() or 1,
                memory=self.node_mib, controller_port=controller_port, node_port=node_port,
            ).lstrip()
        )
        self.daemon(
            "munged", "--foreground", "--force", "--key-file=%s/key" % munge, "--socket=%s/socket" % munge,
            "--pid-file=%s/pid" % munge, "--seed-file=%s/seed" % munge, "--log-file=%s/log" % munge, "--num-threads=2",
        )
        self.wait("munged", (munge / "socket").exists)
        self.daemon("slurmctld", "-D", "-c")
        self.daemon("slurmd", "-D")
        self.wait("slurm", self.is_up)

    def is_up(self) -> bool:
        said = subprocess.run(
            ["sinfo", "--noheader", "--partition=build", "--format=%t"],
            capture_output=True, text=True, env=self.environment,
        )
        return said.returncode == 0 and said.stdout.split() == ["idle"]

    def stop(self) -> None:
        subprocess.run(
            ["scancel", "--user=root"], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=30, check=False,
        )
        for child in reversed(self.children):
            child.send_signal(signal.SIGTERM)
        for child in reversed(self.children):
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def why_not() -> Optional[str]:
    if os.geteuid() != 0:
        return "slurmd and munged of a rig want root"
    search = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    if missing:
        return "no " + ", ".join(missing) + " here (Debian: apt-get install slurm-wlm munge)"
    os.environ["PATH"] = search
    return None


def main(command: List[str]) -> int:
    reason = why_not()
    if reason:
        skip(reason)
    node_mib = NODE_MIB
    if command[0] == "--mib":
        node_mib, command = int(command[1]), command[2:]
    rig = Rig(node_mib)
    try:
        rig.start()
        return subprocess.run(command, env=rig.environment, check=False).returncode
    except RigError as error:
        print(error)
        skip("Slurm does not start here: " + str(error).splitlines()[0])
        return 77
    finally:
        rig.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the daemons end too
    sys.exit(main(sys.argv[1:]))

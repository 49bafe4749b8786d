"""Virtual hosts with disks, cables and a power switch: User-Mode Linux guests in a network of their own.

A host is a tree of processes of this machine, so that SIGKILL is its power-off: data that its kernel had
not written to its disks is gone, data that it had written is there when it boots again. Its data disk
(`DATA_DISK`) is empty at first; DRBD's real module is there to mirror it.

    with Lab(folder, image="bare") as lab:
        lab.boot()
        lab["mbA"].run("apt-get install -y rabbitmq-server")     # from files in the image: no Internet
        subprocess.run([python, "-m", "ops", ...], env=lab.environment)   # ssh mbA works in there
        lab["mbA"].power_off()

The hosts are reached from here by their `address`, by SSH as `lab.home`/.ssh/config says. Needs root.
Several labs may run at once. Start hosts from the main thread: they die with the thread that started them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from tests.support.eventually import FACTOR, eventually

ROOT = Path(__file__).resolve().parents[2]
# Debian release of the hosts; another one by $MESSAGEBUS_HOSTS_SUITE.
SUITE = os.environ.get("MESSAGEBUS_HOSTS_SUITE", "bookworm")
IMAGES = ROOT / ".cache" / ("hosts" if SUITE == "bookworm" else f"hosts-{SUITE}")
# It hands system calls over by ptrace where seccomp cannot be had.
KERNEL = (str(IMAGES / "linux.uml"), "seccomp=auto")
SLOTS = Path("/run/messagebus-hosts")
SLOTS_MAX = 16
DATA_DISK = "/dev/ubdb"

BUILD_WITHIN_S = 550.0
BOOT_WITHIN_S = 60.0
RUN_WITHIN_S = 60.0
DIE_WITHIN_S = 10.0
NICE = -10
# It answers after a second on a busy machine; who asks more often waits longer.
SSH_WITHIN_S = 10.0

Network = Literal["management", "replication"]
Image = Literal["bare", "ready"]


class HostFailed(Exception):
    """Raised when a command on a virtual host failed, or the host ended; the text has its output."""


def build() -> None:
    """Make the images where they are missing or out of date: 100 s the first time."""
    subprocess.run(
        [ROOT / "tests/hosts/image/build.sh", IMAGES], check=True, timeout=BUILD_WITHIN_S * FACTOR
    )


def missing() -> list[str]:
    """Return why no virtual host can run on this machine; empty when they can. Takes half a second."""
    if os.geteuid() != 0:
        return ["the rights of root, for network namespaces and tap interfaces"]
    found = [f"the command {name}" for name in ("ip", "apt-get") if not shutil.which(name)]
    if not Path("/dev/net/tun").exists():
        found.append("/dev/net/tun")
    memory = os.statvfs(_memory_folder())
    if memory.f_bavail * memory.f_frsize < 1 << 30:
        found.append(f"1 GiB of room in {_memory_folder()}, where the memory of the hosts is")
    if memory.f_flag & os.ST_NOEXEC:
        found.append(f"the right to execute what is in {_memory_folder()}; TMPDIR names another")
    return found or _network_refused() or _kernel_refused()


def _network_refused() -> list[str]:
    name = f"mbtry{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", name, "tuntap", "add", "dev", "tap", "mode", "tap")
        _ip("link", "add", name, "type", "veth", "peer", "name", "outside", "netns", name)
    except subprocess.CalledProcessError as fault:
        return [f"`{' '.join(fault.cmd)}`, which says: {fault.stderr.strip()}"]
    finally:
        _ip("netns", "del", name, check=False)
    return []


def _kernel_refused() -> list[str]:
    """Return why the kernel does not start. It tries seccomp, ptrace and its memory before its first line."""
    argv = [*KERNEL, "mem=64M", "con=null", "con0=null,fd:1", "root=/dev/none"]
    try:
        tried = subprocess.run(
            [*argv, "panic=-1", f"uml_dir={SLOTS}/try"],
            env=_kernel_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,
            timeout=30 * FACTOR,
        )
    except FileNotFoundError:  # not built yet, or its C library is where this folder was before
        return []
    except subprocess.TimeoutExpired:
        return ["ptrace of one's own processes; User-Mode Linux does not start"]
    said = tried.stdout + tried.stderr
    if "Linux version" in said:
        return []
    return ["ptrace of one's own processes; User-Mode Linux says: " + said[-300:].strip()]


class Host:
    """Virtual host. number: the last part of its addresses. root, data: files of its two disks."""

    def __init__(self, lab: Lab, name: str, number: int) -> None:
        self.lab, self.name, self.number = lab, name, number
        self.address = f"{lab.management}.{number}"
        self.replication = f"{lab.replication}.{number}"
        self.root = lab.folder / f"{name}.root"
        self.data = lab.folder / f"{name}.data"
        self._console = lab.folder / f"{name}.console"
        self._master = lab.folder / f"{name}.ssh"
        self._process: subprocess.Popen[bytes] | None = None

    # Power.
    def switch_on(self) -> None:
        """Start it; `boot` also waits."""
        assert not self.is_running, f"{self.name} is on"
        if not self.data.exists():
            with self.data.open("wb") as file:
                file.truncate(self.lab.disk_mb << 20)
        shutil.rmtree(self.lab.folder / "uml" / self.name, ignore_errors=True)
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                self._argv(),
                env=_kernel_environment(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        _prefer(self._process.pid)

    def boot(self) -> float:
        """Start it and wait until it answers SSH. Returns the seconds that took."""
        began = time.monotonic()
        self.switch_on()
        self.wait()
        return time.monotonic() - began

    def wait(self) -> None:
        eventually(self._answers, within_s=BOOT_WITHIN_S, what=f"{self.name} answers SSH")

    def power_off(self) -> None:
        """Pull the plug: nothing is flushed, nobody is told."""
        if self._process is None:
            return
        self._hang_up()
        until = time.monotonic() + DIE_WITHIN_S * FACTOR
        while pids := _session(self._process.pid):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            assert time.monotonic() < until, f"{self.name} does not die: {pids}"
            time.sleep(0.01)
        self._process.wait()
        self._process = None

    def wipe(self) -> None:
        """Power off, and give it new disks."""
        self.power_off()
        for file in (self.root, self.data):
            file.unlink(missing_ok=True)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # Cables.
    def cut(self, network: Network = "replication") -> None:
        """Pull the cable; the host sees silence."""
        self._hang_up()
        # A tap interface that is down is an error to the kernel behind it, which never sends again.
        _ip("-n", self.lab.name, "link", "set", self._tap(network), "nomaster")

    def mend(self, network: Network = "replication") -> None:
        _ip("-n", self.lab.name, "link", "set", self._tap(network), "master", network)

    # Commands.
    def run(self, command: str, *, within_s: float = RUN_WITHIN_S) -> str:
        """Run a shell command as root and return its standard output. Raises HostFailed."""
        code, said = self.attempt(command, within_s=within_s)
        if code != 0:
            raise HostFailed(f"{self.name}$ {command}\nexit code {code}\n{said}")
        return said

    def attempt(self, command: str, *, within_s: float = RUN_WITHIN_S) -> tuple[int, str]:
        """Run it as `run` does, whatever its end: exit code, standard output (and error, where it failed)."""
        ended = subprocess.run(
            [*self.lab.ssh, "-o", f"ControlPath={self._master}", self.name, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s * FACTOR,
        )
        said = ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr
        return ended.returncode, said

    @property
    def console(self) -> str:
        """The output of its kernel and its process 1 since it was switched on."""
        return self._console.read_text(errors="replace") if self._console.exists() else ""

    # Details.
    def _argv(self) -> list[str]:
        # Pinned: kernel and processes of a host take turns and never run at the same time. On one
        # processor that is a context switch, across two a wake-up: RabbitMQ's start took 16 to 55 s.
        processors = sorted(os.sched_getaffinity(0))
        lab = self.lab
        return [
            *("ip", "netns", "exec", lab.name),
            *("setpriv", "--pdeathsig", "KILL"),
            *("taskset", "-c", str(processors[self.number % len(processors)])),
            *KERNEL,
            f"mem={lab.memory_mb}M",
            f"ubda={self.root},{IMAGES / lab.image}.img",
            f"ubdb={self.data}",
            *("root=/dev/ubda", "rw", "init=/sbin/virtual-host-init"),
            self._card(0, "management"),
            self._card(1, "replication"),
            *("con=null", "con0=null,fd:1", "ssl=null", "quiet", "panic=-1", "audit=0"),
            *(f"umid={self.name}", f"uml_dir={lab.folder}/uml"),
            *(f"HOST_NAME={self.name}", f"HOST_NUMBER={self.number}"),
            f"HOST_ALL={','.join(host.name for host in lab.hosts)}",
            *(f"HOST_MANAGEMENT={lab.management}", f"HOST_REPLICATION={lab.replication}"),
        ]

    def _card(self, number: int, network: Network) -> str:
        mac = f"52:54:00:6{number}:{self.lab.slot:02x}:{self.number:02x}"
        return f"vec{number}:transport=tap,ifname={self._tap(network)},gro=1,mac={mac}"

    def _tap(self, network: Network) -> str:
        return f"{self.name}-{network[0]}"

    def _answers(self) -> bool:
        if not self.is_running:
            raise HostFailed(f"{self.name} ended by itself:\n{self.console[-2000:]}")
        with (
            suppress(OSError),
            socket.create_connection((self.address, 22), timeout=SSH_WITHIN_S) as ssh,
        ):
            return ssh.recv(4) == b"SSH-"
        return False

    def _hang_up(self) -> None:
        """End the connection that commands share; else it would be believed in for minutes."""
        if self._master.exists():
            argv = ["ssh", "-o", f"ControlPath={self._master}", "-O", "exit", self.name]
            subprocess.run(argv, capture_output=True, check=False, timeout=DIE_WITHIN_S)
            self._master.unlink(missing_ok=True)


class Lab:
    """Hosts, their disks (kept below folder) and their two networks; all ends with the context.

    image: "bare" has packages to install and nothing installed; "ready" has drbd-utils and RabbitMQ.
    """

    def __init__(
        self,
        folder: Path,
        *,
        image: Image,
        names: Sequence[str] = ("mbA", "mbB"),
        memory_mb: int = 512,
        disk_mb: int = 96,
    ) -> None:
        self.folder, self.image = folder, image
        self.memory_mb, self.disk_mb = memory_mb, disk_mb
        self.slot, self._lock = _free_slot()
        self.name = f"mbhosts{self.slot}"
        self.management = f"10.60.{self.slot}"
        self.replication = f"10.61.{self.slot}"
        self.home = folder / "home"
        self.hosts = [Host(self, name, number) for number, name in enumerate(names, start=1)]

    def __enter__(self) -> Lab:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_ssh_config()
        self._lay_cables()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.hosts:
            host.wipe()
        self._remove_cables()
        self._lock.close()

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def boot(self) -> None:
        """Boot all hosts at once."""
        for host in self.hosts:
            host.switch_on()
        for host in self.hosts:
            host.wait()

    @property
    def environment(self) -> dict[str, str]:
        """The environment for commands that use SSH: the hosts' names, key and host key are in its HOME."""
        return {**os.environ, "HOME": str(self.home)}

    @property
    def ssh(self) -> list[str]:
        return [
            *("ssh", "-F", str(self.home / ".ssh" / "config")),
            *("-o", "ControlMaster=auto", "-o", "ControlPersist=300"),
        ]

    # Details.
    def _write_ssh_config(self) -> None:
        folder = self.home / ".ssh"
        folder.mkdir(parents=True, exist_ok=True)
        key = (IMAGES / "known_hosts.pub").read_text().strip()
        known = [f"{each} {key}\n" for host in self.hosts for each in (host.name, host.address)]
        (folder / "known_hosts").write_text("".join(known))
        lines = [line for host in self.hosts for line in self._ssh_lines(host)]
        (folder / "config").write_text("\n".join(lines) + "\n")

    def _ssh_lines(self, host: Host) -> list[str]:
        return [
            f"Host {host.name} {host.address}",
            f"  HostName {host.address}",
            "  User root",
            f"  IdentityFile {IMAGES / 'id_ed25519'}",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {self.home / '.ssh' / 'known_hosts'}",
            "  StrictHostKeyChecking yes",
            "  BatchMode yes",
            "  ConnectTimeout 10",
            "  ServerAliveInterval 5",
        ]

    def _lay_cables(self) -> None:
        self._remove_cables()
        _ip("netns", "add", self.name)
        for bridge in ("management", "replication"):
            _ip("-n", self.name, "link", "add", bridge, "type", "bridge")
            _ip("-n", self.name, "link", "set", bridge, "up")
        for host in self.hosts:
            for network in ("management", "replication"):
                tap = f"{host.name}-{network[0]}"
                _ip("-n", self.name, "tuntap", "add", "dev", tap, "mode", "tap")
                _ip("-n", self.name, "link", "set", tap, "master", network, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("link", "add", self.name, "type", "veth", "peer", "name", "out", "netns", self.name)
        _ip("-n", self.name, "link", "set", "out", "master", "management", "up")
        _ip("addr", "add", f"{self.management}.254/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    def _remove_cables(self) -> None:
        """Remove the cables, also those of an earlier run that was killed: the lock shows that it is gone."""
        left = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        for pid in left.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("link", "del", self.name, check=False)
        _ip("netns", "del", self.name, check=False)


def _free_slot() -> tuple[int, IO[str]]:
    """Return a number for network names and addresses, ours while the lock is open."""
    SLOTS.mkdir(exist_ok=True)
    for number in range(SLOTS_MAX):
        lock = (SLOTS / f"{number}.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return number, lock
    raise HostFailed(f"{SLOTS_MAX} labs run already")


def _session(leader: int) -> list[int]:
    """Return the processes that a host consists of, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            words = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(words[3]) == leader and words[0] != "Z":
                found.append(int(entry.name))
    return found


def _prefer(pid: int) -> None:
    """Give a host's processes priority here: each of its system calls waits for its turn twice.

    Beside three clusters RabbitMQ took 140 s to start without this, and 25 s with it. Linux shares time out
    among sessions first, where it groups them; a process's own nice value counts in its session alone then.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))
    os.setpriority(os.PRIO_PROCESS, pid, NICE)


def _memory_folder() -> str:
    return os.environ.get("TMPDIR") or "/dev/shm"


def _kernel_environment() -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "TMPDIR": _memory_folder(),
    }


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, text=True)

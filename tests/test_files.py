"""File systems that are shared over a network, recognised by the kernel's list of mounts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from store.backends.sqlite.files import (
    check_filesystem,
    filesystem_of,
    is_network,
    make_directory,
    read_mountinfo,
    refusal,
)
from store.errors import NetworkFilesystem, StoreFull, StoreReadOnly


def mount(point: str, kind: str) -> str:
    return f"36 35 98:0 / {point} rw,noatime shared:1 - {kind} source rw\n"


LOCAL = mount("/", "ext4") + mount("/proc", "proc")


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse", "glusterfs"]
)
def test_a_network_file_system_is_refused_by_name(kind: str) -> None:
    """The message names the path and the type, and the hint the way to accept the risk."""
    with pytest.raises(NetworkFilesystem) as refused:
        check_filesystem("/mnt/share/store", lambda: LOCAL + mount("/mnt/share", kind))
    assert f"({kind})" in refused.value.message
    assert "RECALL_ALLOW_NETWORK_FS=1" in refused.value.hint


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "apfs"])
def test_a_local_file_system_is_accepted(kind: str) -> None:
    """Disks, memory, containers' overlays and NTFS by FUSE are one machine's own."""
    check_filesystem("/mnt/disk/store", lambda: LOCAL + mount("/mnt/disk", kind))


def test_the_risk_can_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """RECALL_ALLOW_NETWORK_FS=1 lets it through; any other value does not."""
    mounts = LOCAL + mount("/mnt/share", "nfs4")
    monkeypatch.setenv("RECALL_ALLOW_NETWORK_FS", "1")
    check_filesystem("/mnt/share/store", lambda: mounts)
    monkeypatch.setenv("RECALL_ALLOW_NETWORK_FS", "yes")
    with pytest.raises(NetworkFilesystem):
        check_filesystem("/mnt/share/store", lambda: mounts)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/mnt", "nfs4"),
        ("/mnt/a", "nfs4"),
        ("/mnt/local", "xfs"),
        ("/mnt/local/deep/er", "xfs"),
        ("/mnt/local/deep/share/x", "cifs"),
        ("/mnt/localish", "nfs4"),
        ("/mntx", "ext4"),
        ("/", "ext4"),
    ],
)
def test_the_innermost_mount_decides(path: str, found: str) -> None:
    """Mounts nest; a name that only starts alike is another directory."""
    mounts = LOCAL + mount("/mnt", "nfs4") + mount("/mnt/local", "xfs") + mount("/mnt/local/deep/share", "cifs")
    assert filesystem_of(path, mounts) == found


def test_a_later_mount_on_the_same_point_hides_the_earlier(tmp_path: Path) -> None:
    """Of two mounts on one point the last one is what is seen."""
    assert filesystem_of("/m/x", mount("/m", "ext4") + mount("/m", "nfs4")) == "nfs4"


@pytest.mark.parametrize(
    ("escaped", "path"),
    [
        (r"/mnt/my\040share", "/mnt/my share/store"),
        (r"/mnt/tab\011and\012line", "/mnt/tab\tand\nline/store"),
        (r"/mnt/back\134slash", "/mnt/back\\slash/store"),
        (r"/mnt/back\134040slash", "/mnt/back\\040slash/store"),
        ("/mnt/größe-€", "/mnt/größe-€/store"),
        (os.fsdecode(b"/mnt/\xff\xfe"), os.fsdecode(b"/mnt/\xff\xfe/store")),
    ],
)
def test_escaped_and_odd_mount_points_are_understood(escaped: str, path: str) -> None:
    """The kernel writes spaces as octal; UTF-8 and bytes that are none pass as they are."""
    assert filesystem_of(path, LOCAL + mount(escaped, "nfs4")) == "nfs4"


def test_a_link_into_a_share_is_in_the_share(tmp_path: Path) -> None:
    """The real path counts, not the one that was named."""
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "share")
    mounts = LOCAL + mount(str(tmp_path / "share"), "fuse.sshfs")
    assert filesystem_of(str(tmp_path / "link" / "store"), mounts) == "fuse.sshfs"


@pytest.mark.parametrize("mounts", ["", "garbage", "a b c - d", "36 35 98:0 / /x rw"])
def test_a_list_that_cannot_be_read_says_nothing(mounts: str) -> None:
    """Without knowledge the store is not refused."""
    assert not is_network(filesystem_of("/x/y", mounts))


def test_this_machines_own_list_is_understood(tmp_path: Path) -> None:
    """The temporary directory of the tests is on some file system, and not on a network's."""
    if read_mountinfo():
        assert filesystem_of(str(tmp_path), read_mountinfo())
    check_filesystem(str(tmp_path))


def test_errors_of_system_calls_are_named_by_what_to_do() -> None:
    """No space and over quota mean a full disk; everything else that the directory cannot be written."""
    assert isinstance(refusal(OSError(errno.ENOSPC, "No space left on device"), "/s"), StoreFull)
    assert isinstance(refusal(OSError(errno.EDQUOT, "Disk quota exceeded"), "/s"), StoreFull)
    problem = refusal(OSError(errno.EACCES, "Permission denied"), "/s", "recall.lock")
    assert isinstance(problem, StoreReadOnly)
    assert problem.message == "store /s cannot be written: recall.lock: permission denied"


@pytest.mark.parametrize("below", ["", "store"])
def test_a_file_is_no_place_for_a_store(tmp_path: Path, below: str) -> None:
    """It is said that there is a file, and not that something exists."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreReadOnly, match="there is a file in its place, or above it"):
        make_directory(str(tmp_path / "file" / below))

"""The files of moved values: complete and checked, or absent.

If the system supports it, a file has no name while it is written, so that a kernel that dies leaves nothing. It is read
and compared before it gets its name. Then it stays open: user code may rename or remove it, and it can still be read.
If its contents change, that is detected.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# How many bytes are in memory twice while a value is written, compared or read.
PIECE_BYTES = 16 << 20
# Fast, and at least halves most tables.
COMPRESSION, LEVEL = "zstd", 1

_UNFINISHED = ".part"


class Unfaithful(Exception):
    """The value cannot be written to a file, or need not be; the message is the reason."""


class Damaged(Exception):
    """The contents of a file differ from what was written."""


class Directory:
    """The directory for the files of values."""

    def __init__(self, path: str, meanwhile: Callable[[], None]) -> None:
        self.path = path
        self.meanwhile = meanwhile

    def prepare(self) -> None:
        os.makedirs(self.path, exist_ok=True)
        for name in os.listdir(self.path):
            if name.endswith(_UNFINISHED):
                os.unlink(f"{self.path}/{name}")


class Draft:
    """A file that is being written."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self._name = name
        self._part = ""
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            self.fd = os.open(directory.path, flags | os.O_TMPFILE, 0o644)
        except OSError:
            self._part = f"{directory.path}/{name}{_UNFINISHED}"
            self.fd = os.open(self._part, flags | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)

    def pause(self) -> None:
        """Called after every piece: starts writing it to the disk, so that the end does not take long."""
        os.fdatasync(self.fd)
        self._directory.meanwhile()

    def finish(self) -> Kept:
        """Gives the file its name, and frees its cached memory."""
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        path = f"{self._directory.path}/{self._name}"
        if not self._part:
            try:
                _link(self.fd, self._directory.path, self._name)
            except OSError:
                # Some file systems cannot name it later: write it again under a name.
                self._copy_under_a_name()
        if self._part:
            os.replace(self._part, path)
            self._part = ""
        kept, self.fd = Kept(self.fd, path), -1
        return kept

    def discard(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._part:
            os.unlink(self._part)
            self._part = ""

    def _copy_under_a_name(self) -> None:
        part = f"{self._directory.path}/{self._name}{_UNFINISHED}"
        fd = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        self._part, unnamed, self.fd = part, self.fd, fd
        try:
            os.lseek(unnamed, 0, os.SEEK_SET)
            while os.sendfile(fd, unnamed, None, PIECE_BYTES):
                self._directory.meanwhile()
            os.fsync(fd)
        finally:
            os.close(unnamed)


class Kept:
    """A file with data that is not in memory."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self._looks = self._look()
        self.bytes = self._looks[0]

    def check(self) -> None:
        if self._look() != self._looks:
            raise Damaged(f"{self.path} was changed")

    def remove(self) -> None:
        """Removes the file, when its value is in memory again or not needed."""
        try:
            if os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self.fd)):
                os.unlink(self.path)
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        os.close(self.fd)

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self.fd)
        return found.st_size, found.st_mtime_ns


# Arrays, as .npy


def write_array(draft: Draft, array: Any, directory: Directory) -> None:
    """Writes an array that is contiguous one way or the other, and compares."""
    np = sys.modules["numpy"]
    with os.fdopen(os.dup(draft.fd), "wb") as file:
        np.lib.format.write_array_header_2_0(file, np.lib.format.header_data_from_array_1_0(array))
        start = file.tell()
    raw = _raw(array)
    for at in range(0, len(raw), PIECE_BYTES):
        rest = memoryview(raw[at : at + PIECE_BYTES])
        while rest:
            rest = rest[os.write(draft.fd, rest) :]
        draft.pause()
    for at in range(0, len(raw), PIECE_BYTES):
        piece = raw[at : at + PIECE_BYTES]
        if os.pread(draft.fd, len(piece), start + at) != piece.tobytes():
            raise Unfaithful("it could not be read back as it was written")
        directory.meanwhile()


def read_array(kept: Kept, array: Any) -> None:
    """Fills an array of the same shape and order."""
    kept.check()
    raw = _raw(array)
    start = kept.bytes - len(raw)
    for at in range(0, len(raw), PIECE_BYTES):
        piece = memoryview(raw[at : at + PIECE_BYTES])
        position = start + at
        while piece:
            count = os.preadv(kept.fd, [piece], position)
            if count == 0:
                raise Damaged(f"{kept.path} ends too early")
            piece, position = piece[count:], position + count


def _raw(array: Any) -> Any:
    """The bytes of an array, in the order in which they are in memory."""
    line = array if array.flags.c_contiguous else array.T
    return line.reshape(-1).view(sys.modules["numpy"].uint8)


# Tables, as Parquet


def write_table(draft: Draft, columns: dict[str, Any], rows: int, values: int, directory: Directory) -> None:
    """Writes columns of `values` bytes piece by piece, and compares."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    at_once = max(1, min(rows, rows * PIECE_BYTES // max(1, values)))
    text = [name for name, column in columns.items() if _is_text(column.type)]
    with os.fdopen(os.dup(draft.fd), "wb") as file:
        options = {"compression": COMPRESSION, "compression_level": LEVEL, "write_statistics": False}
        # Numbers are compared as numbers in a dictionary, and 0.0 is the same number as -0.0.
        with pq.ParquetWriter(file, schema, use_dictionary=text or False, **options) as writer:
            for start in range(0, rows, at_once):
                stop = min(rows, start + at_once)
                arrays = [column.slice(start, stop) for column in columns.values()]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=stop - start)
                file.flush()
                draft.pause()

    def compare(start: int, arrays: list[Any]) -> None:
        stop = start + len(arrays[0])
        if not all(column.is_same(start, stop, array) for column, array in zip(columns.values(), arrays)):
            raise Unfaithful("it could not be read back as it was written")
        directory.meanwhile()

    if _read(draft.fd, compare) != rows:
        raise Unfaithful("it could not be read back as it was written")


def read_table(kept: Kept, columns: list[Any], rows: int) -> None:
    """Copies every piece back to its place."""
    kept.check()

    def put(start: int, arrays: list[Any]) -> None:
        for column, array in zip(columns, arrays):
            column.put(start, array)

    if _read(kept.fd, put) != rows:
        raise Damaged(f"{kept.path} ends too early")


def _read(fd: int, take: Callable[[int, list[Any]], None]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with os.fdopen(os.dup(fd), "rb") as raw:
        raw.seek(0)
        # Without threads, because user code may fork; without read-ahead, to use little memory.
        file = pq.ParquetFile(pa.PythonFile(raw, mode="r"), pre_buffer=False)
        start = 0
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            arrays = []
            for chunks in table.columns:
                arrays.append(chunks.chunk(0) if chunks.num_chunks == 1 else pa.concat_arrays(chunks.chunks))
            take(start, arrays)
            start += table.num_rows
    return start


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_large_string(kind) or types.is_string(kind))


def _link(fd: int, directory: str, name: str) -> None:
    # With a directory: only then the link in /proc is followed.
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=folder, follow_symlinks=True)
        except FileExistsError:
            # Left by a kernel that died; ours is newer.
            os.unlink(name, dir_fd=folder)
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def is_memory(path: str) -> bool:
    """Whether files in this directory are memory, so that moving a value there frees nothing."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            if fields[2] == number:
                return fields[fields.index("-") + 1] in ("tmpfs", "ramfs")
    return False


def says_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)

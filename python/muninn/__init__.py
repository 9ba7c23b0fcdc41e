"""Far memory from Python, on top of libmuninn (muninn.h).

    pool = muninn.Pool("unix:/run/muninn/muninn.sock")     # memory at servers, by calls
    grant = pool.grant(1 << 20)
    grant[0:5] = b"hello"

    arena = muninn.Arena("unix:/run/muninn/muninn.sock", size=1 << 30, local=64 << 20)
    array = arena.array(10_000_000, "float64")             # a NumPy array, most of which is far

    store = muninn.Store(pool)                             # a dictionary of bytes whose values are far
    store["key"] = b"value"

The library is looked for in $MUNINN_LIBRARY, beside this file, and where the loader looks. What fails raises
MuninnError, which says what happened, to what, and what to do next. Children of fork (multiprocessing's default on
Linux before Python 3.14) cannot use what their parent opened: have them open their own.
"""

import ctypes
import os
import threading

__all__ = ["Arena", "Grant", "MuninnError", "Pool", "Store", "version"]


class MuninnError(OSError):
    """What happened, to what, and what to do next."""


class _CGrant(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("server", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class _CStats(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("near_bytes", "far_bytes", "fetched", "evicted", "kept", "lost")
    ]


def _load():
    named = os.environ.get("MUNINN_LIBRARY")
    beside = os.path.join(os.path.dirname(__file__), "libmuninn.so.0")
    path = named or (beside if os.path.exists(beside) else "libmuninn.so.0")
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"cannot load libmuninn ({error}): install the package muninn, or name the file in MUNINN_LIBRARY"
        ) from None


_lib = _load()
_u64, _size, _pointer, _text = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
for _name, _result, _arguments in [
    ("muninn_error", _text, []),
    ("muninn_version", _text, []),
    ("muninn_pool_open", _pointer, [_text, _text]),
    ("muninn_pool_close", None, [_pointer]),
    ("muninn_grant_take", ctypes.c_int, [_pointer, _u64, _pointer]),
    ("muninn_grant_release", ctypes.c_int, [_pointer, _pointer]),
    ("muninn_read", ctypes.c_int, [_pointer, _pointer, _u64, _pointer, _size]),
    ("muninn_write", ctypes.c_int, [_pointer, _pointer, _u64, _pointer, _size]),
    ("muninn_compare_swap", ctypes.c_int, [_pointer, _pointer, _u64, _u64, _u64, _pointer]),
    ("muninn_fetch_add", ctypes.c_int, [_pointer, _pointer, _u64, _u64, _pointer]),
    ("muninn_arena_open", _pointer, [_text, _text, _u64, _u64]),
    ("muninn_arena_close", None, [_pointer]),
    ("muninn_arena_base", _pointer, [_pointer]),
    ("muninn_arena_size", _u64, [_pointer]),
    ("muninn_arena_take", _pointer, [_pointer, _u64, _u64]),
    ("muninn_arena_look", None, [_pointer, _pointer]),
]:
    _function = getattr(_lib, _name)
    _function.restype, _function.argtypes = _result, _arguments


def version():
    """The version of libmuninn."""
    return _lib.muninn_version().decode()


def _encoded(text):
    return None if text is None else os.fsencode(text)


def _fail():
    raise MuninnError(_lib.muninn_error().decode("utf-8", "replace"))


def _check(code):
    if code != 0:
        _fail()


class _Handle:
    """Something of the library's that is closed once, by its own process only."""

    def __init__(self, pointer, close):
        self._pointer, self._close, self._pid = pointer or _fail(), close, os.getpid()

    @property
    def _as_parameter_(self):
        return self._open()

    def _open(self):
        if self._pointer is None:
            raise ValueError("it is closed")
        if self._pid != os.getpid():
            raise MuninnError("it was opened before a fork: a child opens its own")
        return self._pointer

    def close(self):
        pointer, self._pointer = self._pointer, None
        if pointer is not None and self._pid == os.getpid():
            self._close(pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_pointer", None) is not None:
            self.close()


class Pool(_Handle):
    """Sessions at memory servers, such as "unix:/run/muninn/muninn.sock,10.0.0.5:7000"."""

    def __init__(self, servers, key_file=None):
        super().__init__(_lib.muninn_pool_open(_encoded(servers), _encoded(key_file)), _lib.muninn_pool_close)

    def grant(self, size):
        """Zeroed memory at one of the servers."""
        return Grant(self, size)


class Grant:
    """Memory at a server: read and written by slices, or by read and write."""

    def __init__(self, pool, size):
        self._pool, self._c = pool, _CGrant()
        _check(_lib.muninn_grant_take(pool._open(), size, ctypes.byref(self._c)))
        self.size = size

    def __len__(self):
        return self.size

    def _range(self, offset, length):
        if offset < 0 or length < 0 or offset + length > self.size:
            raise IndexError(f"{length} bytes at {offset} are not within {self.size}")

    def read(self, offset, length):
        self._range(offset, length)
        into = bytearray(length)
        self.read_into(offset, into)
        return bytes(into)

    def read_into(self, offset, buffer):
        """Reads into a writable buffer: a bytearray, an array, a NumPy array."""
        with memoryview(buffer) as view, view.cast("B") as raw:
            self._range(offset, len(raw))
            if len(raw):
                memory = (ctypes.c_char * len(raw)).from_buffer(raw)
                _check(_lib.muninn_read(self._pool._open(), ctypes.byref(self._c), offset, memory, len(raw)))
                del memory

    def write(self, offset, data):
        """Writes any buffer."""
        with memoryview(data) as view:
            contents = view.tobytes()
        self._range(offset, len(contents))
        _check(_lib.muninn_write(self._pool._open(), ctypes.byref(self._c), offset, contents, len(contents)))

    def __getitem__(self, where):
        start, stop, step = self._slice(where)
        return self.read(start, max(stop - start, 0))[::step] if step == 1 else self.read(start, stop - start)[::step]

    def __setitem__(self, where, data):
        start, stop, step = self._slice(where)
        with memoryview(data) as view:
            if step != 1 or view.nbytes != stop - start:
                raise ValueError(f"{view.nbytes} bytes do not fit {stop - start}")
        self.write(start, data)

    def _slice(self, where):
        if not isinstance(where, slice):
            raise TypeError("use a slice, such as grant[0:5]")
        start, stop, step = where.indices(self.size)
        if step < 1:
            raise ValueError("a slice of far memory goes forward")
        return start, max(start, stop), step

    def compare_swap(self, offset, expect, desired):
        """The word that was there; it is replaced if it was the expected one."""
        found = _u64()
        _check(
            _lib.muninn_compare_swap(
                self._pool._open(), ctypes.byref(self._c), offset, expect, desired, ctypes.byref(found)
            )
        )
        return found.value

    def fetch_add(self, offset, add):
        """Adds to a word; the word that was there."""
        found = _u64()
        _check(_lib.muninn_fetch_add(self._pool._open(), ctypes.byref(self._c), offset, add, ctypes.byref(found)))
        return found.value

    def release(self):
        _check(_lib.muninn_grant_release(self._pool._open(), ctypes.byref(self._c)))


class Arena(_Handle):
    """Ordinary memory of this process, most of which is far.

    What is made in it must not be used after it is closed: memory is gone then. It is closed with the program,
    never before something that was made in it is forgotten, unless close() is called.
    """

    def __init__(self, servers, size, local, key_file=None):
        pointer = _lib.muninn_arena_open(_encoded(servers), _encoded(key_file), size, local)
        super().__init__(pointer, _lib.muninn_arena_close)
        self.size = _lib.muninn_arena_size(self._open())

    def buffer(self, size, align=64):
        """A writable memoryview of fresh zeroes."""
        address = _lib.muninn_arena_take(self._open(), size, align)
        if not address:
            _fail()
        memory = (ctypes.c_char * size).from_address(address)
        # The view keeps the memory, and so the arena.
        memory._arena = self
        return memoryview(memory).cast("B")

    def array(self, shape, dtype="float64"):
        """A NumPy array of zeros."""
        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise TypeError("an array of Python objects cannot be far: use a type of numbers")
        count = int(numpy.prod(shape, dtype=numpy.int64))
        view = self.buffer(max(count * kind.itemsize, 1))
        return numpy.frombuffer(view, dtype=kind, count=count).reshape(shape)

    def stats(self):
        """Bytes near and far now; chunks fetched, evicted, kept and lost ever."""
        stats = _CStats()
        _lib.muninn_arena_look(self._open(), ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in _CStats._fields_}


class Store:
    """A dictionary from any key to bytes, whose values are far.

    Values are written one after the other into blocks. What is replaced or deleted leaves a hole; a block is given
    back when nothing in it is used any more.
    """

    def __init__(self, pool, block=4 << 20):
        self._pool, self._block = pool, block
        self._where, self._blocks, self._lock = {}, {}, threading.Lock()
        self._current, self._end, self._next = None, 0, 0

    def __setitem__(self, key, value):
        with memoryview(value) as view:
            value = view.tobytes()
        with self._lock:
            if self._current is None or self._end + len(value) > self._blocks[self._current][0].size:
                self._open_block(max(self._block, len(value)))
            block, offset = self._current, self._end
            if value:
                self._blocks[block][0].write(offset, value)
            # Only now: until all of it is written the old value is there.
            self._forget(key)
            self._end += len(value)
            self._blocks[block][1] += 1
            self._where[key] = (block, offset, len(value))

    def _open_block(self, size):
        grant = self._pool.grant(size)
        before, self._current = self._current, self._next
        self._blocks[self._current] = [grant, 0]
        self._next, self._end = self._next + 1, 0
        if before is not None and self._blocks[before][1] == 0:
            self._blocks.pop(before)[0].release()

    def _forget(self, key):
        if key not in self._where:
            return
        block = self._where.pop(key)[0]
        self._blocks[block][1] -= 1
        if self._blocks[block][1] == 0 and block != self._current:
            self._blocks.pop(block)[0].release()

    def __getitem__(self, key):
        with self._lock:
            block, offset, length = self._where[key]
            return self._blocks[block][0].read(offset, length)

    def __delitem__(self, key):
        with self._lock:
            if key not in self._where:
                raise KeyError(key)
            self._forget(key)

    def __contains__(self, key):
        return key in self._where

    def __len__(self):
        return len(self._where)

    def __iter__(self):
        return iter(list(self._where))

    def keys(self):
        return list(self._where)

    def items(self):
        return [(key, self[key]) for key in self]

    def get(self, key, default=None):
        try:
            return self[key]
        except KeyError:
            return default

    def close(self):
        """Gives all blocks back; the store is empty afterwards."""
        with self._lock:
            blocks, self._blocks, self._where, self._current = self._blocks, {}, {}, None
            for grant, _ in blocks.values():
                grant.release()

"""The runtime: code that dies with its handle, a store that trusts nothing, programs equal on any number of threads."""

import ctypes
import errno
import itertools
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tracejit import config
from tracejit.errors import BackendError
from tracejit.runtime import buffer, engine, loader, team, walker
from tracejit.runtime.program import Arena, Batch, Check, External, Int, Loop, Program, Row, Step
from tracejit.runtime.store import Store

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
OWN_LOADER = sys.platform == "linux" and platform.machine() == "x86_64"
needs_threads = pytest.mark.skipif(not walker.has_threads(), reason="programs run on one thread here")

# b[i] = a[i] + n for i in [lo, hi); the first word of scratch counts the calls that used it.
ADD = """
define void @add(ptr %args, i64 %lo, i64 %hi, ptr %scratch) nounwind {
entry:
  %a = load ptr, ptr %args
  %b.p = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %b.p
  %n.p = getelementptr ptr, ptr %args, i64 2
  %n = load i64, ptr %n.p
  %calls = load i64, ptr %scratch, align 64
  %calls.next = add i64 %calls, 1
  store i64 %calls.next, ptr %scratch, align 64
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %i.next, %loop ]
  %a.i = getelementptr i64, ptr %a, i64 %i
  %b.i = getelementptr i64, ptr %b, i64 %i
  %v = load i64, ptr %a.i
  %w = add i64 %v, %n
  store i64 %w, ptr %b.i
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %hi
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with config.override(cache_dir=str(tmp_path / "cache")):
        yield


@pytest.fixture
def add():
    return engine.compile(ADD)


def addresses(*arrays):
    return (ctypes.c_void_p * len(arrays))(*map(buffer.address, arrays))


def chain(code, length, extent, grain=16, *, parallel=True, checks=()):
    """out = in + 1 + 2 + ... + length, through two halves of an arena."""

    def place(step):
        if step < 0 or step == length - 1:
            return External(0 if step < 0 else 1)
        return Arena(8 * extent * (step % 2))

    steps = [
        Step(code.address("add"), (place(s - 1), place(s), Int(s + 1)), extent, grain, 64, f"add {s + 1}", parallel)
        for s in range(length)
    ]
    return Program(steps, 16 * extent, 2, checks, [code])


def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def python(source):
    """What another process prints; it must end well."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_in_threads(work, arguments):
    """Run work(argument) for each at once; the first exception is ours."""
    failures = []

    def guarded(argument):
        try:
            work(argument)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# engine


def test_same_text_gives_the_same_code_while_it_lives():
    text = "define i64 @seven() { ret i64 7 }"
    code = engine.compile(text)
    assert engine.compile(text) is code
    assert engine.compile(text, opt=0) is not code
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("seven"))() == 7


def test_code_calls_given_symbols_and_the_mathematical_library():
    inner = engine.compile("define double @inner(double %x) { %y = fadd double %x, 1.0\n ret double %y }")
    outer = engine.compile(
        """
        declare double @inner(double)
        declare double @exp(double)
        define double @outer(double %x) {
          %y = call double @inner(double %x)
          %z = call double @exp(double %y)
          ret double %z
        }
        """,
        symbols={"inner": inner.address("inner")},
        needs=[inner],
    )
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(outer.address("outer"))(1.0) == pytest.approx(np.exp(2.0))


def test_errors_name_what_is_wrong():
    with pytest.raises(BackendError, match="expected type"):
        engine.compile("define void @f( {")
    with pytest.raises(BackendError, match="it calls nobody_has_this, which nobody defines"):
        engine.compile("declare void @nobody_has_this()\ndefine void @f() { call void @nobody_has_this()\n ret void }")
    with pytest.raises(BackendError, match="no function @g in this code; it defines f"):
        engine.compile("define void @f() { ret void }").address("g")


def test_second_compile_takes_the_object_from_disk(tmp_path):
    text = "define i64 @nine() { ret i64 9 }"
    engine.compile(text)
    engine.cpu_key.cache_clear()  # what it says is kept in the folder of this test
    engine.cpu_key()
    script = f"""
import ctypes, sys
from tracejit.runtime import engine, store
from tracejit import config
config.update(cache_dir={config.current().cache_dir!r})
code = engine.compile({text!r})
nine = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("nine"))
print(nine(), store.current().stats.disk_hits, store.current().stats.writes, "llvmlite" in sys.modules)
"""
    assert python(script).split() == ["9", "2", "0", str(not OWN_LOADER)]


MODULES = {
    "constants": """
        define <4 x float> @constants(<4 x float> %x) {
          %y = fadd <4 x float> %x, <float 1.0, float 2.0, float 3.0, float 4.0>
          ret <4 x float> %y
        }
        define float @first(float %x) {
          %v = insertelement <4 x float> zeroinitializer, float %x, i64 0
          %w = call <4 x float> @constants(<4 x float> %v)
          %y = extractelement <4 x float> %w, i64 0
          ret float %y
        }""",
    "data": """
        @count = global i64 40
        @room = internal global [4096 x i64] zeroinitializer
        @table = internal constant [2 x ptr] [ptr @up, ptr @down]
        define internal i64 @up(i64 %x) { %y = add i64 %x, 1 ret i64 %y }
        define internal i64 @down(i64 %x) { %y = sub i64 %x, 1 ret i64 %y }
        define i64 @step(i64 %which) {
          %at = getelementptr ptr, ptr @table, i64 %which
          %f = load ptr, ptr %at
          %old = load i64, ptr @count
          %new = call i64 %f(i64 %old)
          store i64 %new, ptr @count
          %last = getelementptr i64, ptr @room, i64 4095
          %seen = load i64, ptr %last
          store i64 1, ptr %last
          %both = add i64 %new, %seen
          ret i64 %both
        }""",
    "far": """
        declare double @pow(double, double)
        declare ptr @PyLong_FromLongLong(i64)
        declare void @Py_DecRef(ptr)
        @PyExc_ValueError = external global ptr
        define double @power(double %x) { %y = call double @pow(double %x, double 3.0) ret double %y }
        define ptr @error() { %e = load ptr, ptr @PyExc_ValueError ret ptr %e }
        define i64 @address() { %a = ptrtoint ptr @PyLong_FromLongLong to i64 ret i64 %a }""",
}


@pytest.mark.parametrize("own", [True, False])
def test_objects_are_loaded_alike_with_and_without_llvm(own, monkeypatch):
    if not own:
        monkeypatch.setattr(engine, "load", lambda files, symbols: None)
    code = {name: engine._load([engine.assemble(text)], engine._DEFINED.findall(text), {}, ()) for name, text in
            MODULES.items()}  # fmt: skip
    assert all(isinstance(c._pages, loader.Image) is (own and OWN_LOADER) for c in code.values())
    floats, words = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float), ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    doubles, none = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double), ctypes.CFUNCTYPE(ctypes.c_void_p)
    assert floats(code["constants"].address("first"))(2.5) == 3.5
    step = words(code["data"].address("step"))
    assert [step(0), step(0), step(1)] == [41, 43, 42]  # memory between calls: zero once, then what was written
    far = code["far"]
    assert doubles(far.address("power"))(3.0) == 27
    assert none(far.address("error"))() == id(ValueError)
    assert none(far.address("address"))() == ctypes.cast(ctypes.pythonapi.PyLong_FromLongLong, ctypes.c_void_p).value


def test_objects_call_each_other():
    calls = "declare i64 @twice_of(i64)\ndefine i64 @of_{n}(i64 %x) {{ %y = call i64 @twice_of(i64 %x) ret i64 %y }}"
    twice = "define i64 @twice_of(i64 %x) { %y = add i64 %x, %x ret i64 %y }"
    objects = [engine.assemble(t) for t in (calls.format(n=1), twice, calls.format(n=2))]
    code = engine.link(objects, ("of_1", "of_2"))
    for name in ("of_1", "of_2"):
        assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address(name))(21) == 42


@pytest.mark.skipif(not OWN_LOADER, reason="LLVM links here")
def test_what_the_loader_does_not_know_is_left_to_llvm():
    whole = engine.assemble(MODULES["far"]).data
    assert loader.load([whole], {}) is not None
    for wrong in (
        b"",
        whole[:40],
        b"\x7fELF" + bytes(60),
        b"\xcf\xfa\xed\xfe" + whole[4:],
        whole[:18] + b"\xb7" + whole[19:],
    ):
        assert loader.load([wrong], {}) is None
    assert loader.load([whole, whole], {}) is None  # both define @power
    local = engine.assemble("@x = thread_local global i64 0\ndefine i64 @f() { %v = load i64, ptr @x ret i64 %v }").data
    assert loader.load([local], {}) is None


@linux_only
def test_code_lies_on_pages_that_nobody_writes():
    code = engine.compile(MODULES["data"])
    at = code.address("step")
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [(*(int(x, 16) for x in line.split()[0].split("-")), line.split()[1]) for line in lines]
    assert next(access for first, end, access in spans if first <= at < end) == "r-xp"


def test_import_brings_no_llvm():
    assert python("import sys, tracejit.runtime.program; print('llvmlite' in sys.modules)").strip() == "False"


def test_threads_compile_at_once():
    def work(seed):
        for n in range(5):
            code = engine.compile(f"define i64 @f() {{ ret i64 {n} }}", opt=seed % 2)
            assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("f"))() == n

    run_in_threads(work, range(8))


def test_a_lock_of_llvmlite_that_an_interrupt_left_held_is_let_go():
    lock, text, done = engine._llvm().ffi.lib._lock, "define i64 @h() { ret i64 98 }", []
    lock.__enter__()  # as where a KeyboardInterrupt falls right behind it
    lock.__enter__()
    engine._emit(text, 2)
    thread = threading.Thread(target=lambda: done.append(engine._emit(text, 2)), daemon=True)
    thread.start()
    thread.join(20)
    assert done


def test_assembly_shows_the_code():
    assert "leave_me" in engine.assembly("define void @leave_me() { ret void }")


@linux_only
def test_dropped_code_is_freed():
    def compile_and_drop(numbers):
        for n in numbers:
            code = engine.compile(f"define i64 @f() {{ ret i64 {n} }}", opt=0)
            assert code.address("f")

    compile_and_drop(range(50))
    before = rss()
    compile_and_drop(range(50, 250))
    assert rss() - before < 4 << 20


@pytest.mark.skipif(not OWN_LOADER, reason="LLVM keeps it")
def test_code_that_lives_to_the_end_stays_mapped():
    script = """
import atexit, gc
kept = []

@atexit.register
def last():  # after what the loader does at exit
    at = kept.pop().address("nine")
    gc.collect()
    spans = [line.split()[0].split("-") for line in open("/proc/self/maps")]
    print(any(int(first, 16) <= at < int(end, 16) for first, end in spans))

from tracejit.runtime import engine
kept.append(engine.compile("define i64 @nine() { ret i64 9 }"))
"""
    assert python(script).strip() == "True"


def test_vector_width_divides_the_register():
    assert engine.vector_bits() in (128, 256, 512)
    assert engine.simd_width(4) == engine.vector_bits() // 32


# store


def test_store_keeps_bytes_across_stores(tmp_path):
    Store(tmp_path / "a" / "b").put("key", b"code")
    again = Store(tmp_path / "a" / "b")
    assert again.get("key") == b"code"
    assert again.get("other") is None
    assert (again.stats.disk_hits, again.stats.misses) == (1, 1)


@pytest.mark.parametrize("position", [0, 10, 40, -1])
def test_store_refuses_a_file_with_one_wrong_byte(tmp_path, position):
    Store(tmp_path).put("key", b"code" * 100)
    (file,) = tmp_path.iterdir()
    blob = bytearray(file.read_bytes())
    blob[position] ^= 1
    file.write_bytes(blob)
    store = Store(tmp_path)
    assert store.get("key") is None
    assert store.stats.corrupt == 1
    assert not file.exists()


@pytest.mark.parametrize("length", [0, 3, 70])
def test_store_refuses_a_truncated_file(tmp_path, length):
    Store(tmp_path).put("key", b"code" * 100)
    (file,) = tmp_path.iterdir()
    os.truncate(file, length)
    assert Store(tmp_path).get("key") is None


def test_store_works_in_memory_when_the_folder_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file" / "cache")
    store.put("key", b"code")
    assert store.get("key") == b"code"
    assert store.get("other") is None
    assert store.stats.failures >= 1


def test_store_works_in_memory_when_the_disk_is_full(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    store = Store(tmp_path)
    store.put("key", b"code")
    assert store.get("key") == b"code"
    assert store.stats.failures == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_store_works_in_memory_when_the_folder_is_read_only(tmp_path):
    tmp_path.chmod(0o500)
    store = Store(tmp_path)
    store.put("key", b"code")
    assert store.get("key") == b"code"


@pytest.mark.skipif(os.name == "nt", reason="no such rights")
def test_store_reads_no_code_from_a_folder_anyone_may_write(tmp_path):
    folder = tmp_path / "open"
    Store(folder).put("key", b"code")
    folder.chmod(0o777)
    assert Store(folder).get("key") is None


def test_store_survives_concurrent_writers(tmp_path):
    values = [bytes([n]) * 5000 for n in range(8)]

    def write(value):
        for _ in range(20):
            Store(tmp_path).put("key", value)
            assert Store(tmp_path).get("key") in values

    run_in_threads(write, values)
    assert Store(tmp_path).get("key") in values
    assert len(list(tmp_path.iterdir())) == 1


def test_store_deletes_the_longest_unused_when_it_grows_too_large(tmp_path):
    store = Store(tmp_path, memory_bytes=0, disk_bytes=10_000)
    for n in range(9):
        store.put(f"key {n}", bytes(1000))
        os.utime(store._path(f"key {n}"), (n, n))
    assert store.get("key 0") is not None  # young again
    store.put("key 9", bytes(1000))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 10_000
    assert store.get("key 0") is not None
    assert store.get("key 1") is None


def test_store_bounds_its_memory(tmp_path):
    store = Store(tmp_path / "file", memory_bytes=2500)
    (tmp_path / "file").write_text("no disk")
    for n in range(5):
        store.put(f"key {n}", bytes(1000))
    assert store.get("key 2") is None
    assert store.get("key 4") is not None


# program


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize(("extent", "grain"), [(1, 1), (17, 1), (1000, 16), (1001, 7), (40_000, 128)])
def test_chain_is_the_same_on_any_number_of_threads(add, threads, extent, grain):
    program = chain(add, 9, extent, grain)
    a, b = np.arange(extent), np.zeros(extent, np.int64)
    with config.override(threads=threads):
        for _ in range(5):
            b[:] = 0
            assert program.run(addresses(a, b)) == -1
            assert np.array_equal(b, a + 45)


@needs_threads
def test_each_element_is_computed_exactly_once(add):
    counts = np.zeros(997, np.int64)
    program = Program([Step(add.address("add"), (External(0), External(0), Int(1)), 997, 3, 8, parallel=True)], 0, 1)
    with config.override(threads=5):
        for _ in range(2000):
            program.run(addresses(counts))
    assert (counts == 2000).all()


def test_external_offsets_and_plain_integers_as_pointers(add):
    program = Program([Step(add.address("add"), (External(0, 16), External(1, 8), Int(-3)), 2, scratch=8)], 0, 2)
    a, b = np.arange(4), np.zeros(4, np.int64)
    assert program.run([buffer.address(a), buffer.address(b)]) == -1
    assert b.tolist() == [0, -1, 0, 0]


def test_step_over_nothing_is_not_called():
    assert Program([Step(0, (), extent=0), Step(0, (), extent=0, parallel=True)], 0, 0).run([]) == -1


def test_program_of_no_steps_runs():
    assert Program([], 0, 0).run([]) == -1


@pytest.mark.parametrize("threads", [1, 3])
def test_failing_check_stops_the_run(add, threads):
    checks = [Check(2, Arena(0), 8, 100 + 6), Check(0, Arena(0), 8, 101)]
    program = chain(add, 5, 64, checks=checks)
    with config.override(threads=threads):
        for first, failing in ((100, -1), (7, 1)):
            a, b = np.full(64, first), np.full(64, -1)
            assert program.run(addresses(a, b)) == failing
            assert (b == (first + 15 if failing == -1 else -1)).all()


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([True]), 1),
        (np.array([-2], np.int8), -2),
        (np.array([1.5], np.float16), 0x3E00),
        (np.array([1.0], np.float32), 0x3F800000),
        (np.array([-0.0]), 1 << 63),
        (np.array([-5]), -5),
    ],
)
def test_check_compares_bits(add, array, expected):
    step = Step(add.address("add"), (External(1), External(1), Int(0)), scratch=8)
    other = np.zeros(1, np.int64)

    def outcome(bits):
        return Program([step], 0, 2, [Check(0, External(0), array.itemsize, bits)]).run(addresses(array, other))

    assert outcome(expected) == -1
    assert outcome(expected ^ 1) == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_arrays_as_externals(add, threads):
    program = chain(add, 5, 640, checks=[Check(4, External(1), 8, 15)])
    a, b = np.arange(640), np.zeros(640, np.int64)
    with config.override(threads=threads):
        program.run_arrays([a, b], done := [])
        assert done == [-1]
        assert np.array_equal(b, a + 15)
        program.run_arrays((a + 1, b), done)
        assert done == [-1, 0]


def test_array_count_is_checked(add):
    with pytest.raises(BackendError, match="2 externals run with 1"):
        chain(add, 1, 1).run_arrays([np.zeros(1)], [])


def test_wrong_number_of_pointers_is_refused(add):
    with pytest.raises(BackendError, match="2 externals run with 1"):
        chain(add, 1, 1).run([0])


def test_operand_outside_is_refused(add):
    with pytest.raises(AssertionError, match="external 3 of 2"):
        Program([Step(0, (External(3),))], 0, 2)


def test_program_prints_its_steps(add):
    text = str(chain(add, 2, 32, checks=[Check(1, External(1), 1, 1)]))
    assert "0: add 1(external 0, arena + 0, 1) over 32 in slices of 16" in text
    assert "check 0: external 1 == 0x1 (1 bytes)" in text


def apart(code, extents, grain=16, *, batches, checks=()):
    """out = in + k, where step k has elements of its own."""
    starts = np.cumsum([0, *extents])
    steps = [
        Step(
            code.address("add"), (External(0, 8 * s), External(1, 8 * s), Int(k)), n, grain, 64, f"part {k}", n > grain
        )
        for k, (s, n) in enumerate(zip(starts.tolist(), extents))
    ]
    return Program(steps, 0, 2, checks, [code], batches=batches)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("extents", [(1, 1), (40, 0, 1, 33, 0), (5,) * 100, (1000, 1, 1, 1), (0, 0, 640)])
def test_batch_computes_each_unit_of_its_steps_once(add, threads, extents):
    program = apart(add, extents, batches=[Batch(0, len(extents))])
    number = np.repeat(np.arange(len(extents)), extents)
    a = np.arange(len(number)) * 10
    with config.override(threads=threads):
        for _ in range(20):
            b = np.full(len(a), -1)
            assert program.run(addresses(a, b)) == -1
            assert np.array_equal(b, a + number)


def test_batches_stand_between_other_steps_loops_and_checks(add):
    extents = (16,) * 6
    checks = [Check(2, External(1, 8 * 32), 8, 34), Check(5, External(1, 8 * 80), 8, 85)]
    a, b = np.arange(96), np.zeros(96, np.int64)
    with config.override(threads=3):
        program = apart(add, extents, 4, batches=[Batch(4, 6), Batch(1, 4)], checks=checks)
        assert program.run(addresses(a, b)) == -1
        assert np.array_equal(b, a + np.repeat(np.arange(6), 16))
        a[32] = 0  # of the first batch: the second is not begun
        b[:] = 0
        assert program.run(addresses(a, b)) == 0
        assert b.reshape(6, 16).any(1).tolist() == [True] * 4 + [False] * 2

    def turn(code):
        args = (Row(External(0), 64), External(1), Int(1))
        return Step(code.address("add"), args, 8, scratch=64)

    steps = [*program.steps, turn(add)]
    looped = Program(steps, 0, 2, (), [add], [Loop(6, 7, 5)], [Batch(0, 3), Batch(3, 6)])
    a[:] = np.arange(96)
    assert looped.run(addresses(a, b)) == -1
    assert b[:8].tolist() == list(range(33, 41))
    assert b[8:].tolist() == (a + np.repeat(np.arange(6), 16))[8:].tolist()


def test_batch_and_loop_do_not_cross(add):
    with pytest.raises(AssertionError, match="in a loop"):
        Program(apart(add, (1, 1, 1), batches=()).steps, 0, 2, (), [add], [Loop(0, 2, 2)], [Batch(1, 3)])


def test_program_prints_its_batches(add):
    assert "together:\n    1: part 1(" in str(apart(add, (1, 1, 1), batches=[Batch(1, 3)]))


def test_many_python_threads_run_one_program(add):
    program = chain(add, 20, 3000)

    def work(seed):
        a, b = np.arange(3000) * seed, np.zeros(3000, np.int64)
        for _ in range(100):
            b[:] = 0
            assert program.run(addresses(a, b)) == -1
            assert np.array_equal(b, a + 210)

    with config.override(threads=3):
        run_in_threads(work, range(8))
        assert 1 <= len(program._idle) <= 8


@needs_threads
def test_team_changes_size_while_others_run(add):
    program = chain(add, 20, 3000)

    def work(seed):
        a, b = np.arange(3000) * seed, np.zeros(3000, np.int64)
        for n in range(60):
            if seed == 0:
                config.update(threads=2 + n % 3)
            b[:] = 0
            assert program.run(addresses(a, b)) == -1
            assert np.array_equal(b, a + 210)

    with config.override(threads=2):
        run_in_threads(work, range(4))


@linux_only
@needs_threads
def test_small_program_starts_no_threads(add):
    a, b = np.arange(64), np.zeros(64, np.int64)

    def count():
        return len(os.listdir("/proc/self/task"))

    with config.override(threads=1):
        chain(add, 1, 64).run(addresses(a, b))
    alone = count()
    with config.override(threads=4):
        chain(add, 3, 64, grain=64).run(addresses(a, b))
        assert count() == alone
        chain(add, 3, 64, grain=16).run(addresses(a, b))
        assert count() == alone + 3


@needs_threads
def test_scratch_grows_with_the_program(add):
    a, b = np.arange(64), np.zeros(64, np.int64)
    with config.override(threads=3):
        for scratch in (8, 100_000, 64, 1 << 20):
            step = Step(add.address("add"), (External(0), External(1), Int(1)), 64, 16, scratch, parallel=True)
            program = Program([step] * 50, 0, 2)
            for _ in range(20):
                program.run(addresses(a, b))
            assert np.array_equal(b, a + 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_runs_wide_programs(add):
    program = chain(add, 9, 4096)
    a, b = np.arange(4096), np.zeros(4096, np.int64)
    with config.override(threads=3):
        program.run(addresses(a, b))
        for _ in range(5):
            b[:] = 0
            child = os.fork()
            if child == 0:
                ok = program.run(addresses(a, b)) == -1 and np.array_equal(b, a + 45)
                ok = ok and engine.compile("define void @in_child() { ret void }").address("in_child")
                os._exit(0 if ok else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert program.run(addresses(a, b)) == -1
            assert np.array_equal(b, a + 45)


def run_wide(extent):
    """Run a program in this process; for the spawned one."""
    code = engine.compile(ADD)
    a, b = np.arange(extent), np.zeros(extent, np.int64)
    with config.override(threads=2):
        return chain(code, 3, extent).run(addresses(a, b)) == -1 and np.array_equal(b, a + 6)


# Kernels that go on in a daemon thread while the interpreter ends; the helpers must be gone before their code is.
AT_EXIT = f"""
import sys, threading
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import test_runtime as t
from tracejit import config
config.update(threads=3)
assert t.run_wide(5000)
program = t.chain(t.engine.compile(t.ADD), 50, 5000)
a, b = t.np.arange(5000), t.np.zeros(5000, t.np.int64)
started = threading.Event()
def forever():
    while True:
        program.run(t.addresses(a, b))
        started.set()
threading.Thread(target=forever, daemon=True).start()
started.wait()
print("done")
"""


def test_new_process_runs_and_ends_while_a_program_runs():
    assert python(AT_EXIT).strip() == "done"


def test_spawned_process_runs_programs():
    script = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
if __name__ == "__main__":
    import multiprocessing, test_runtime
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(test_runtime.run_wide, (5000,)))
"""
    assert python(script).strip() == "True"


@needs_threads
def test_team_ends_when_asked(add):
    own = team.Team(3)
    own.stop()
    program = chain(add, 3, 640)
    a, b = np.arange(640), np.zeros(640, np.int64)
    frame = program.run(addresses(a, b))
    assert frame == -1
    # Who still holds a stopped team runs alone.
    assert walker.native().walk(program.address, program._idle[0].address, addresses(a, b), own.address) == -1
    assert np.array_equal(b, a + 6)


def test_walker_without_threads_gives_the_same(add):
    code = engine.compile(walker.text(threads=False))
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4)
    program = chain(add, 3, 640)
    a, b = np.arange(640), np.zeros(640, np.int64)
    program.run(addresses(a, b))
    b[:] = 0
    walk = signature(code.address("tj_walk"))
    assert walk(program.address, program._idle[0].address, addresses(a, b), None) == -1
    assert np.array_equal(b, a + 6)


# buffer


def test_small_and_large_arrays_have_the_asked_type():
    for shape in (0, 5, (0, 3), (), (200, 300), 100_000):
        array = buffer.empty(shape, np.float32)
        assert array.shape == np.empty(shape).shape
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array.fill(1)
    assert buffer.address(buffer.empty(100_000, "f4")) % 64 == 0
    assert buffer.address(buffer.empty(1 << 20, "f8")) % (2 << 20) == 0


def test_block_comes_back_when_the_array_and_its_views_are_gone():
    buffer.trim()
    array = buffer.empty(100_000, np.float64)
    where = buffer.address(array)
    view = array[10:20].reshape(2, 5)
    del array
    other = buffer.empty(100_000, np.float64)
    assert buffer.address(other) != where
    del view
    assert buffer.address(buffer.empty(100_000, np.float64)) == where


def test_trim_gives_memory_back():
    pool = buffer.Pool()
    blocks = [pool.block(1 << 20) for _ in range(3)]
    assert pool.kept == 0
    blocks.clear()
    assert pool.kept >= 3 << 20
    pool.trim()
    assert pool.kept == 0
    pool.block(1 << 20)
    assert pool.made == 4


def test_many_blocks_of_a_size_share_huge_pages():
    pool, size = buffer.Pool(), 48 << 10
    blocks = [pool.block(size) for _ in range(200)]
    assert pool.made == buffer.FEW + -(-(200 - buffer.FEW) // (buffer.HUGE // size))
    starts = sorted(b.address for b in blocks)
    assert all(a % 64 == 0 for a in starts)
    assert all(b - a >= size for a, b in itertools.pairwise(starts))
    for k, block in enumerate(blocks):
        ctypes.memset(block.address, k, size)
    assert all(ctypes.string_at(b.address, size) == bytes([k]) * size for k, b in enumerate(blocks))
    made, kept = pool.made, pool.kept
    del block, blocks
    assert pool.kept == kept + 200 * size
    again = [pool.block(size) for _ in range(200)]
    assert pool.made == made
    pool.trim()
    assert pool.kept == 0
    ctypes.memset(again[-1].address, 7, size)  # of a huge page whose other regions have been given up
    assert ctypes.string_at(again[-1].address, size) == bytes([7]) * size


@pytest.mark.parametrize("array", [
    np.arange(20_000, dtype=np.float32), np.arange(20_000.0)[::2], np.ones((100, 200)).T, np.zeros((0, 1 << 20)),
    np.arange(20_000, dtype=">i4"), np.full(10_000, None),
])  # fmt: skip
def test_copy_is_as_numpys(array):
    out, want = buffer.copy(array), np.array(array)
    assert np.array_equal(out, array)
    assert not np.shares_memory(out, array)
    assert (out.dtype, out.shape, out.strides) == (want.dtype, want.shape, want.strides)
    assert out.flags.writeable


def test_pool_keeps_no_more_than_its_limit():
    pool = buffer.Pool(keep=4 << 20)
    for nbytes in (1 << 20, 2 << 20, 64 << 20):
        blocks = [pool.block(nbytes) for _ in range(6)]
        blocks.clear()
        assert pool.kept <= pool.keep


@pytest.mark.parametrize("nbytes", [1, 4096, 4097, 100_000, (1 << 20) + 1, 3 << 30])
def test_size_classes_waste_little(nbytes):
    size = buffer.size_class(nbytes)
    assert nbytes <= size <= max(4096, nbytes * 9 // 8 + 4096)
    assert buffer.size_class(size) == size


def test_live_arrays_never_alias_across_threads():
    buffer.trim()

    def work(seed):
        rng = np.random.default_rng(seed)
        live = []
        for n in range(300):
            array = buffer.empty(int(rng.integers(9000, 20_000)), np.int64)
            array.fill(seed * 1000 + n)
            live.append((array, seed * 1000 + n))
            if len(live) > 8:
                kept, value = live.pop(int(rng.integers(8)))
                assert (kept == value).all()

    run_in_threads(work, range(1, 9))


def test_address_is_that_of_the_first_element():
    base = np.zeros((5, 6), np.float32)
    frozen = base[1:, 2:]
    frozen.flags.writeable = False
    for array in (base, frozen, base.T, base[::-1, ::-1], np.zeros(0), np.zeros(())):
        assert buffer.address(array) == array.ctypes.data

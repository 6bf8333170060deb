"""`Compiled`: a callable that behaves exactly as the function it wraps, only faster when it is hot.

    call 1          plain Python (lazy initialisation happens here)
    call 2          recorded
    call 3          recorded again, compared with the first, compiled (call 2 where an earlier process did this)
    from call 4 on  one compiled call, where key and guards hold; else plain Python, recorded if that may pay

Nothing falls back in silence: every call that ran as plain Python after the first is counted under its reason, and
`explain()` shows it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracejit import config, logs
from tracejit.errors import TracejitError, is_foreign
from tracejit.ir.printer import to_text
from tracejit.ir.symint import Scope
from tracejit.runtime import dispatch
from tracejit.runtime.collector import resting
from tracejit.runtime.files import replace_file
from tracejit.runtime.forks import building
from tracejit.runtime.interpreter import CALLABLE
from tracejit.trace import confirmed, instrument
from tracejit.trace.causes import ARGUMENTS, DATA, Cause
from tracejit.trace.domain import Domain
from tracejit.trace.entry import Direct, Front, Later, Unsaid, make
from tracejit.trace.explain import Explanation, History, Subject
from tracejit.trace.key import Call, Family, Shapes, describe_key, flatten, shapeless, with_symbols
from tracejit.trace.recorder import Reason
from tracejit.trace.recording import Recording, record
from tracejit.trace.scalars import Memory
from tracejit.trace.tree import Bucket, Hit, Left, Trace, compile_trace, resolve

if TYPE_CHECKING:
    from tracejit.trace.verify import Verified

__all__ = ["Compiled", "disable", "eager"]

_REFUSALS = 3  # recordings of one path that may be refused before it stays eager
_ALL_REFUSALS = 24  # ... of all paths of a function
_BUCKETS = 64
_ENTRIES = 8  # native entries made for one trace, beside one for every so many hits
_EXTENTS = 16  # ... where extents are inputs
_CALLS, _COMPILED = CALLABLE["calls"], CALLABLE["compiled"]
_OWN = frozenset(
    [
        "function",
        "domain",
        "hot",
        "backend",
        "background",
        "verify",
        "front",
        "buckets",
        "fallbacks",
        "history",
        "refused",
        "lock",
        "recordings",
        "families",
        "shapes",
        "general",
        "memory",
        "__wrapped__",
        "__name__",
        "__qualname__",
        "__doc__",
        "__module__",
        "__dict__",
    ]
)


@contextmanager
def eager() -> Generator[None]:
    """Inside, compiled functions run as plain Python (in this thread)."""
    config.modes.here.eager += 1
    try:
        yield
    finally:
        config.modes.here.eager -= 1


def disable(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, kept out of recordings: a compiled function that calls it stays eager."""

    @functools.wraps(f)
    def plainly(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    return plainly


class Turn:
    """Whose turn it is to record: a thread's, until it gives the turn back or, where an interrupt came before it could,
    asks for it again. A forked child does not wait for threads that it does not have."""

    def __init__(self) -> None:
        self.holder: tuple[int, int] | None = None
        self.lock = threading.Lock()

    def take(self) -> bool:
        """Whether it is the caller's."""
        me = os.getpid(), threading.get_ident()
        if self.holder is not None and self.holder[0] != me[0]:
            self.holder, self.lock = None, threading.Lock()
        with self.lock:
            if self.holder is not None and self.holder != me:
                return False
            self.holder = me
            return True

    def give_back(self) -> None:
        """Let others have it."""
        self.holder = None


class Compiled(dispatch.Direct):
    """What `tracejit.compile` returns. `compiled_calls` counts the calls that ran compiled.

    A call enters `__call__` only where no native entry (entry.py) can do it.
    """

    function: Callable[..., Any]

    def __init__(
        self,
        domain: Domain,
        function: Callable[..., Any],
        *,
        hot: int | None = None,
        backend: str | None = None,
        verify: object = None,
        background: bool = False,
    ) -> None:
        own = self.__dict__
        own["background"] = background
        own["verify"], own["history"] = None if verify is None else config.period(verify), History()
        own["domain"], own["function"], own["hot"], own["backend"] = domain, function, hot, backend
        own["front"] = Front(Compiled.__call__)
        own["recordings"] = own["refused"] = 0
        own["families"], own["memory"] = {}, Memory()
        own["shapes"], own["general"] = {}, {}  # without their extents: `Shapes`; exact keys: what they are in general
        own["buckets"], own["fallbacks"], own["lock"] = {}, Counter[str](), Turn()
        if isinstance(function, types.FunctionType):
            functools.update_wrapper(self, function)

    # -- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        settings, here = config.current(), config.modes.here
        if settings.eager or here.eager or here.recorder is not None:
            return self.function(*args, **kwargs)
        words = self.front.words
        words[_CALLS] = n = words[_CALLS] + 1
        if n < (settings.hot if self.hot is None else self.hot):
            return self.function(*args, **kwargs)
        if not instrument.trusted():
            return self.fall_back(f"this Python ({sys.version.split()[0]}) did not pass the self-test", args, kwargs)
        if (native := dispatch.native_now()) is not None:
            native.here(here)
        call = flatten(self.domain, args, kwargs, (self.domain.modes(), id(settings)))
        wide: frozenset[Any] = self.place(call) if call.numbers else frozenset()
        bucket: Bucket | None = self.buckets.get(call.key)
        if bucket is None and call.tensors:
            bucket = self.place_shapes(call)
        seen: tuple[Any, ...] = ()
        why = "first call of its kind"
        if bucket is not None:
            plainly = functools.partial(self.plainly, args, kwargs)
            every = settings.verify if self.verify is None else self.verify
            found, seen, why, final = self.compiled(bucket, call, every, plainly)
            if isinstance(found, Hit):
                return found.value
            if found is not None:
                if found.raised is not None:
                    raise found.raised
                return found.value
            if final:
                return self.fall_back(why, args, kwargs)
        if (refusal := self.may_not_record(bucket, seen)) is not None:
            return self.fall_back(refusal if bucket is None or not bucket.traces else f"{why}; {refusal}", args, kwargs)
        if not self.lock.take():
            return self.fall_back("another thread is recording", args, kwargs)
        try:
            cause = self.cause(call, bucket, why)
            bucket = self.bucket(call, settings) if bucket is None else bucket
            bucket.cause = cause or bucket.cause
            return self.record(bucket, call, seen, wide, args, kwargs, settings)
        finally:
            self.lock.give_back()

    def compiled(
        self, bucket: Bucket, call: Call, every: int, plainly: Callable[[], Any]
    ) -> tuple[Hit | Verified | None, tuple[Any, ...], str, bool]:
        """(the result of a compiled call or None, what data was seen, why not, whether recording could not help).

        Each trace's first call and every `every`-th is the result of `plainly`, and the trace is held to it."""
        seen: tuple[Any, ...] = ()
        why = "recorded once so far" if bucket.pending else "no trace of this kind"
        for trace in tuple(bucket.traces):
            if seen and not trace.recording.may_follow(seen):
                continue
            if (blocked := trace.recording.blocked(call)) is not None:
                why = blocked
                logs.note("guards", "%s: %s", self.name, why)
                continue
            entry = None if every else self.entry_for(trace, call)
            if every and trace.hits % every == 0:
                from tracejit.trace.verify import Verified, verify  # few ask for it

                found = verify(trace, self.domain, call, plainly, self.backend or config.current().backend)
                if isinstance(found, Verified):
                    self.judge(bucket, trace, found)
                    return found, (), "", False
            else:
                found = trace.run(self.domain, call)
            if isinstance(found, Hit):
                self.front.words[_COMPILED] += 1
                bucket.hits += 1
                trace.used = self.calls
                self.front.collect(self.buckets.values())
                if entry is not None:
                    self.front.put(trace, call, entry)
                    dispatch.direct(self, self.front.words)
                return found, (), "", False
            if isinstance(found, Left):
                seen = found.seen
                self.front.collect(self.buckets.values())
                if trace.misses > 16 + 4 * trace.hits:
                    # It costs more than it brings; another thread may have seen that, too.
                    bucket.traces = [t for t in bucket.traces if t is not trace]
                why = Cause(f"data led another way: {found.where or 'a check'} saw {found.value}", DATA)
                logs.note("guards", "%s: %s", self.name, why)
            else:
                return None, seen, found, True
        return None, seen, why, False

    def entry_for(self, trace: Trace, call: Call) -> Direct | None:
        """A native entry for calls like this one, which goes through Python; None where there is one, or can be none.

        It is made before the call is run: afterwards its arguments may look otherwise.
        """
        if trace.unsaid or trace.hits < 1 or (tensors := resolve(self.domain, trace.recording, call)) is None:
            return None
        if (direct := self.front.get(trace, call)) is not None:
            direct.grow()
            if direct.lies([self.domain.array(t) for t in tensors]):
                return None
        if trace.made > (_EXTENTS if call.symbols else _ENTRIES) + trace.hits // 64:
            trace.unsaid = "" if call.symbols else "its memory moves too often"
            return None
        try:
            made = make(trace, self.domain, call, tensors, config.current())
        except Later:
            return None
        except Unsaid as e:
            trace.unsaid = str(e)
            return None
        trace.made += 1
        return made

    def place(self, call: Call) -> frozenset[Any]:
        """Complete the call's key by the numbers that are not inputs; returns which are."""
        family = self.families.get(call.family)
        if family is None:
            if len(self.families) > 4 * _BUCKETS:
                self.families.clear()
            family = self.families[call.family] = Family(dict(call.numbers))
        if family.wide:
            call.key = family.key(call)
        if call.key not in self.buckets:
            family.widen(call)
            call.key = family.key(call)
        return frozenset(family.wide)

    def place_shapes(self, call: Call) -> Bucket | None:
        """Give the call the key of all extents, if some were others before; the bucket of its key, if there is one."""
        exact = call.key
        if (known := self.general.get(exact)) is not None:
            call.key, call.symbols, call.extents, call.shapes = known
            return self.buckets.get(call.key)
        general = shapeless(exact)
        family = self.shapes.get(general)
        if family is None:
            if len(self.shapes) > 4 * _BUCKETS:
                self.shapes.clear()
            family = self.shapes[general] = Shapes()
        shapes = tuple(self.domain.array(t).shape for t in call.tensors)
        family.widen(shapes)
        if (values := family.values(shapes)) is None:
            return None
        key = with_symbols(call.key, family)
        bucket = self.buckets.get(key)
        waiting = () if bucket is None or bucket.traces else bucket.pending
        if any(p.symbols[name] == n for p in waiting for name, n in values.items()):
            return None  # at these extents the recording that waits could not be told from one of them alone
        call.key, call.symbols, call.extents = key, values, family
        call.shapes = tuple(family.of(k, s) for k, s in enumerate(shapes))
        if bucket is not None and bucket.traces:
            if len(self.general) > 4 * _BUCKETS:
                self.general.clear()
            self.general[exact] = key, values, family, call.shapes
        return bucket

    def may_not_record(self, bucket: Bucket | None, seen: tuple[Any, ...]) -> str | None:
        """Why this call is not worth recording; None where it is."""
        if sys.is_finalizing():
            return "the interpreter is shutting down"
        if self.refused >= _ALL_REFUSALS:
            return "too many recordings were refused"
        if self.recordings >= 48 + self.compiled_calls // 4:
            return "it sees new arguments, state or data too often to be compiled"
        if bucket is None:
            return None
        if bucket.wrong:
            return "compiled code of this kind differed from plain Python"
        if bucket.builder is not None and bucket.builder.is_alive():
            return "its code is being made in the background"
        if bucket.eager[seen] >= _REFUSALS:
            return f"this path stays eager: {bucket.reason}"
        if not bucket.may_record():
            return "it sees new state or data too often to be compiled"
        return None

    def fall_back(self, why: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Plain Python, counted."""
        self.note(why)
        return self.function(*args, **kwargs)

    def note(self, why: str) -> None:
        if len(self.fallbacks) < 64 or why in self.fallbacks:
            self.fallbacks[why] += 1
        logs.note("fallback", "%s ran as plain Python: %s", self.name, why)

    def plainly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Plain Python all the way down."""
        with eager():
            return self.function(*args, **kwargs)

    def judge(self, bucket: Bucket, trace: Trace, found: Verified) -> None:
        """Drop a trace that differed from plain Python, and compile no more of its kind."""
        self.history.verified += 1
        if found.mismatch is None:
            trace.hits += 1
            trace.used = self.calls
            return
        bucket.traces = [t for t in bucket.traces if t is not trace]
        self.front.collect(self.buckets.values())
        bucket.wrong = True
        words = str(found.mismatch)
        self.history.mismatches[8:] = [words]
        self.note("compiled code differed from plain Python")
        logs.logger("verify").error("%s: compiled code differs from plain Python: %s", self.name, words)

    def cause(self, call: Call, bucket: Bucket | None, why: str) -> Cause | None:
        """Why a function that has compiled code is compiled again; None where that is not known, or it has none."""
        if isinstance(why, Cause) or not any(b.traces for b in tuple(self.buckets.values())):
            return why if isinstance(why, Cause) else None
        if bucket is not None:
            return None
        known = tuple(self.buckets.items())
        before, _ = max(known, key=lambda found: max((t.used for t in found[1].traces), default=-1))
        return Cause(f"arguments were ({describe_key(before)}), are ({describe_key(call.key)})", ARGUMENTS)

    @property
    def calls(self) -> int:
        """How many there were."""
        return self.front.words[_CALLS]

    @property
    def compiled_calls(self) -> int:
        """How many of them ran compiled."""
        return self.front.words[_COMPILED]

    # -- recording

    @property
    def name(self) -> str:
        """The function's name, for people."""
        f = self.function
        return str(getattr(f, "__qualname__", type(f).__qualname__))

    def record(
        self,
        bucket: Bucket,
        call: Call,
        seen: tuple[Any, ...],
        wide: frozenset[Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        settings: config.Config,
    ) -> Any:
        """Run the call recorded; compile where an earlier recording of the same path agrees."""
        bucket.pending = [p for p in bucket.pending if not p.link.dead]
        valid = [p for p in bucket.pending if p.blocked(call) is None]
        net = not valid or bucket.astray
        bucket.recordings += 1
        self.__dict__["recordings"] += 1
        scope = Scope(call.symbols) if call.symbols else None
        try:
            result, found = record(
                self.domain, self.function, args, kwargs, call, self.name,
                net=net, memory=self.memory, wide=wide, scope=scope,
            )  # fmt: skip
        except Exception as e:
            self.refuse(bucket, seen, (Reason(f"it raised {type(e).__name__}", None),))
            raise
        if isinstance(found, tuple):
            if scope is None:
                self.refuse(bucket, seen, found)
            else:
                self.narrow(call, scope.looked or call.symbols, str(found[0]))
            return result
        self.note("recorded")
        if found.looked:  # numbers that looked like inputs and are none: the next recording has them as they are
            if (family := self.families.get(call.family)) is not None:
                family.narrow(found.looked)
            return result
        if found.again:  # a loop of it will be rolled up
            return result
        for earlier in valid:
            if not earlier.is_alike(found):
                continue
            bucket.pending.remove(earlier)
            if earlier.fingerprint != found.fingerprint and scope is not None:
                self.narrow(call, call.symbols, "it does not do the same at other extents")
            elif earlier.fingerprint != found.fingerprint:
                self.refuse(
                    bucket, seen, (Reason("two recordings of one path differ: it depends on something unseen", None),)
                )
            else:
                self.install(bucket, earlier, seen, settings)  # the one that was recorded over the net
                confirmed.remember(earlier.mark)
            return result
        if net and confirmed.before(found.mark):
            self.install(bucket, found.seal(self.domain), seen, settings)
        elif net and scope is not None and len(bucket.pending) >= 3:
            self.narrow(call, call.symbols, "what it does with extents differs from call to call")
        elif net:
            bucket.pending = [*bucket.pending[-3:], found.seal(self.domain)]
        bucket.astray = not net
        return result

    def narrow(self, call: Call, symbols: Iterable[str], why: str) -> None:
        """These extents stay part of the key: a recording for all of them is not possible, or was of no use."""
        call.extents.narrow(symbols, why)
        self.general.clear()
        self.buckets.pop(call.key, None)
        self.note(f"recorded for all extents in vain: {why}")

    def install(self, bucket: Bucket, rec: Recording, seen: tuple[Any, ...], settings: config.Config) -> None:
        """Compile a confirmed recording, here or in a thread that the process waits for at its end."""
        if self.background:
            bucket.builder = threading.Thread(target=self.build, args=(bucket, rec, seen, settings), name=self.name)
            with suppress(RuntimeError):  # no more threads can be had: then here
                bucket.builder.start()
                return
        self.build(bucket, rec, seen, settings)

    def build(self, bucket: Bucket, rec: Recording, seen: tuple[Any, ...], settings: config.Config) -> None:
        """Compile a confirmed recording."""
        try:
            with building(), resting():
                trace = compile_trace(rec, self.backend or settings.backend)
        except Exception as e:  # a call never fails because it cannot be compiled; our own mistakes are logged
            if is_foreign(e):
                raise
            expected = isinstance(e, (TracejitError, NotImplementedError))
            log = logs.logger("fallback")
            (log.debug if expected else log.error)("%s could not be compiled", self.name, exc_info=e)
            self.refuse(bucket, seen, (Reason(f"the backend cannot compile it: {type(e).__name__}: {e}", None),))
            return
        home, front, buckets = weakref.ref(bucket), self.front, self.buckets

        def forget() -> None:
            if (b := home()) is not None:
                b.traces = [t for t in b.traces if t is not trace]
            front.collect(buckets.values())

        rec.link.tell = forget
        if rec.link.dead:
            return
        front.collect(buckets.values())
        trace.used = self.calls
        bucket.traces = [trace, *bucket.traces]
        self.say(bucket, trace)
        traces = [(t.used, b, t) for b in tuple(self.buckets.values()) for t in b.traces]
        if len(traces) > settings.max_traces:
            _, b, oldest = min(traces, key=lambda entry: entry[0])
            b.traces = [t for t in b.traces if t is not oldest]
            front.collect(buckets.values())

    def say(self, bucket: Bucket, trace: Trace) -> None:
        """Note a new trace."""
        if bucket.cause is not None:
            self.history.recompiled(bucket.cause)
            advice = f" (to avoid it: {bucket.cause.advice})" if bucket.cause.advice else ""
            logs.note("recompiles", "%s was compiled again: %s%s", self.name, bucket.cause, advice)
            bucket.cause = None
        if logs.opened("guards") and trace.recording.guard is not None:
            for row in trace.recording.guard.rows:
                logs.note("guards", "%s: %s", self.name, row.words)
        if logs.opened("fusion") or logs.opened("kernels"):
            from tracejit.codegen.kernel import kernel_ops  # not needed where the plan is found

            for kernel in trace.kernels():
                logs.note("fusion", "%s: one kernel of %s", self.name, ", ".join(kernel_ops(kernel)))
                logs.note("kernels", "%s: %s", self.name, kernel)
            for op in trace.executable.host_ops:
                logs.note("fusion", "%s: %s runs as NumPy", self.name, op)

    def refuse(self, bucket: Bucket, seen: tuple[Any, ...], reasons: tuple[Reason, ...]) -> None:
        """Note that the path was not compiled."""
        bucket.eager[seen] += 1
        bucket.reason = "; ".join(map(str, reasons))
        self.__dict__["refused"] += 1
        self.history.refused(reasons)
        self.note(bucket.reason)

    def bucket(self, call: Call, settings: config.Config) -> Bucket:
        """A new bucket for the call's key, which it keeps valid."""
        if len(self.buckets) >= _BUCKETS:
            for key in [k for k, b in tuple(self.buckets.items()) if not b.traces][: _BUCKETS // 2] or list(
                self.buckets
            )[:1]:
                self.buckets.pop(key, None)
        key, buckets, front = call.key, self.buckets, self.front

        def forget(_: Any) -> None:
            buckets.pop(key, None)
            front.collect(buckets.values())

        pins: list[Any] = [settings]
        for x in call.objects:
            try:
                pins.append(weakref.ref(x, forget))
            except TypeError:
                pins.append(x)
        self.buckets[key] = made = Bucket(tuple(pins))
        return made

    # -- standing in for the function

    @staticmethod
    def _tracejit_inline(compiled: Compiled) -> Callable[..., Any]:
        """What a recording of another function calls instead."""
        return compiled.function

    def __reduce__(self) -> Any:
        """By name where it has taken the place of its function, so that other processes compile for themselves; else as
        what it wraps."""
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        found: Any = sys.modules.get(module or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return (
            name
            if found is self
            else (self.domain.compile, (self.function, self.hot, self.backend, self.verify, self.background))
        )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None or not isinstance(self.function, types.FunctionType):
            return self
        return types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or "function" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or isinstance(self.function, types.FunctionType):
            self.__dict__[name] = value
        else:
            setattr(self.function, name, value)

    def __repr__(self) -> str:
        return f"<compiled {self.name}: {self.compiled_calls} of {self.calls} calls ran compiled>"

    # -- looking inside

    def traces(self) -> list[Trace]:
        """The traces there are."""
        self.front.collect(self.buckets.values())
        return [t for b in tuple(self.buckets.values()) for t in b.traces]

    def explain(self, html: str | os.PathLike[str] | None = None) -> Explanation:
        """What was compiled and what was not, and why: a text, which has `html()`. `html` is a file for that page."""
        self.front.collect(self.buckets.values())
        counts = Counter(self.fallbacks)
        loops = tuple(self.memory.loops.values())
        found = Explanation(
            Subject(self.name, self.calls, self.compiled_calls, self.buckets, counts, self.history, loops)
        )
        if html is not None:
            replace_file(Path(html), found.html().encode())
        return found

    def graphs(self) -> list[str]:
        """The text of each trace's graph."""
        return [to_text(t.graph) for t in self.traces()]

    def kernels(self) -> list[Any]:
        """The kernels of all traces; each prints as its loop nest and code."""
        return [k for t in self.traces() for k in t.kernels()]

"""What the native module tells of itself, handed to Python's ``logging``.

Its threads put messages into a queue of theirs, and never come to Python: a handler that waits holds up no read, and a thread that reads
needs no interpreter. A thread of Python's looks into the queue a few times a second. It is there from the first connection on, and a
forked process has one once it connects itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback

from forebay import _native

_logger = logging.getLogger("forebay")

#: Of a message, by how bad it is.
_LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, 5)
#: Seconds between two looks into the queue, and at the levels of the loggers.
_EVERY = 0.25
#: How long the end of the interpreter waits for a handler.
_END = 1.0


class _Forwarding:
    """The thread, and how it ends."""

    def __init__(self) -> None:
        #: A signal's handler that connects may interrupt a thread that has it.
        self._lock = threading.RLock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        _native.log_start(wanted())
        with self._lock:
            if self._thread is None and not self._is_over.is_set():
                # Known before it is started, so that such a handler starts no other one.
                self._thread = thread = threading.Thread(target=self._run, name="forebay-log", daemon=True)
                try:
                    # At the end of the interpreter none can be started.
                    with contextlib.suppress(RuntimeError):
                        thread.start()
                finally:
                    if not thread.is_alive():
                        self._thread = None

    def end(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(_END)
            hand_out(*_native.log_take())

    def _run(self) -> None:
        while not self._is_over.wait(_EVERY):
            _native.log_start(wanted())
            hand_out(*_native.log_take())


_forwarding = _Forwarding()


def begin() -> None:
    """Have messages handed out, of this process."""
    _forwarding.begin()


def end() -> None:
    """Hand out the last ones, at the end of the interpreter."""
    _forwarding.end()


def forget() -> None:
    """In a forked child: the thread and what it held are the parent's."""
    global _forwarding
    _forwarding = _Forwarding()


def wanted() -> int:
    """How much some logger of ours wants, as the native module counts it: 0 is nothing, 1 errors, 2 warnings, 5 everything."""
    loggers = logging.Logger.manager.loggerDict
    below = [loggers.get(name) for name in tuple(loggers) if name.startswith("forebay.")]
    ours = [_logger, *(logger for logger in below if isinstance(logger, logging.Logger))]
    least = min(logger.getEffectiveLevel() for logger in ours)
    return sum(level >= least for level in _LEVELS[1:])


def hand_out(messages: list[_native.LogRow], lost: int) -> None:
    """Hand what was in the queue to the loggers, if it is as bad as they want by now."""
    for severity, target, text, seconds, file, line in messages:
        logger, level = logging.getLogger(name_of(target)), _LEVELS[severity]
        if logger.isEnabledFor(level):
            record = logger.makeRecord(logger.name, level, file or "(unknown file)", line or 0, text, (), None)
            # When it happened, not when it was taken out.
            record.relativeCreated += (seconds - record.created) * 1000
            record.created, record.msecs = seconds, seconds % 1 * 1000
            _handle(logger, record)
    if lost and _logger.isEnabledFor(logging.WARNING):
        text = f"{lost} messages came faster than they were taken out, and are left out here"
        _handle(_logger, _logger.makeRecord(_logger.name, logging.WARNING, __file__, 0, text, (), None))


def name_of(target: str) -> str:
    """The logger for a module of the native code: ``forebay.client`` for ``forebay_client::routes``."""
    crate = target.partition("::")[0].removeprefix("forebay").strip("_")
    return f"forebay.{crate}" if crate else "forebay"


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        logger.handle(record)
    except Exception:
        # A filter or a handler of the program's. The next message may be for another one.
        if logging.raiseExceptions:
            traceback.print_exc()

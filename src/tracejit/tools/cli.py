"""The commands `demo`, `show` and `cache`: arguments in, one function called, its exit status out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tracejit.errors import TracejitError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0 where everything it promises held."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (TracejitError, OSError) as error:  # what the user can mend is said without a traceback
        print(f"tracejit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tracejit", description="A tracing JIT for tensor programs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="train a small CNN, eager and compiled; export it and load it back")
    demo.add_argument("--data", metavar="DIR", help="a folder with the four IDX files of (Fashion-)MNIST")
    demo.add_argument("--epochs", type=_positive, metavar="N", help="passes over the data (30; with --data 3)")
    demo.add_argument("--out", default="digits.tj", metavar="FILE", help="where the trained model goes (digits.tj)")
    demo.set_defaults(run=_demo)
    show = commands.add_parser("show", help="print the signature and the graph of an exported file")
    show.add_argument("file", metavar="FILE")
    show.set_defaults(run=_show)
    cache = commands.add_parser("cache", help="pack the compiled code of an application into one file, or load it")
    actions = cache.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, run, words in (
        ("pack", _pack, "write the cache folder to FILE"),
        ("load", _load, "put what FILE holds into the cache folder: a FILE is a program, so trust where it comes from"),
    ):
        action = actions.add_parser(name, help=words)
        action.add_argument("file", metavar="FILE")
        action.set_defaults(run=run)
    actions.add_parser("info", help="where the cache is and how large").set_defaults(run=_info)
    actions.add_parser("clear", help="delete what is in it").set_defaults(run=_clear)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _demo(options: argparse.Namespace) -> int:
    from tracejit.tools.demo import demo

    return demo(options.data, options.epochs, options.out)


def _show(options: argparse.Namespace) -> int:
    from tracejit.export import load

    function = load(options.file)
    print(function.signature)
    for name, array in function.weights.items():
        print(f"  {name}: {array.dtype}{list(array.shape)}")
    print(function.graph, end="")
    return 0


def _pack(options: argparse.Namespace) -> int:
    from tracejit.tools import cache

    print(f"{cache.pack(options.file)} entries in {options.file}")
    return 0


def _load(options: argparse.Namespace) -> int:
    from tracejit.tools import cache

    print(f"{cache.load(options.file)} new entries in {cache.size()[0]}")
    return 0


def _info(options: argparse.Namespace) -> int:
    from tracejit.tools import cache

    folder, count, nbytes = cache.size()
    print(f"{folder}: {count} entries, {nbytes / 1e6:.1f} MB")
    return 0


def _clear(options: argparse.Namespace) -> int:
    from tracejit.tools import cache

    print(f"{cache.clear()} entries deleted")
    return 0

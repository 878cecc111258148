"""Random metadata folders of an Iceberg table: files of usual and odd names, and a hint that fits them or not.

Each file has a kind and a number that are known from how its name was drawn, never from reading the name. Which file
has to be read follows from these: a hint decides, else the highest number that one file of one catalog has.
"""

import gzip
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

import pyarrow as pa

Kind = Literal["hadoop", "catalog", "unordered", "none"]
PLAIN, PACKED, PACKED_BEHIND, FOREIGN = (
    ".metadata.json",
    ".gz.metadata.json",
    ".metadata.json.gz",
    ".zstd.metadata.json",
)
# As Iceberg's Java classes try them for one number.
ENDINGS = (PLAIN, PACKED, PACKED_BEHIND)
STARTS = (0, 1, 7, 98, 9_998, 99_996, 2**31 - 2, 1_712_345_678_901_000_000)
UNORDERED = (
    "v2-copy{}", "V{n}{}", "{n:05d}{}", "{n:05d}-abc{}", "final{}", "backup of v{n}{}", "v-1{}", "v{n}.old{}",
    "v{n}_{}", "00000-restored-2024-01-01-{n}{}", "v1000000000000000000000{}", "v\uff19{}", "copy{}", "~v{n}{}",
)  # fmt: skip
NOISE = (
    ".v{n}.metadata.json.crc", ".v{n}.metadata.json", "snap-17-{n}.avro", "0000aaaa-m0.avro", "old/v{n}.metadata.json",
    "v{n}.metadata.json.tmp", "v{n}.json", "metadata.json", "{n}.stats", "v{n}.metadata.json.bak",
    "v{n}.metadata.json/part", "00000-{n}.metadata", "old/00099-11111111-2222-4333-8444-{n:012d}.metadata.json",
)  # fmt: skip
GARBAGE: tuple[bytes, ...] = (
    b"", b"\n", b"junk", b"3.5", b"-1", "\uff13".encode(), "\ufeff3".encode(), "3".encode("utf-16"), b"9" * 300,
    b"v1 v2", b"0x3", b"none.txt", b"x" * 250, b"\x00\xff\xfe", b"v", b"metadata.json",
)  # fmt: skip


@dataclass(frozen=True)
class File:
    """A file of the folder; `state` says which state of the table it tells."""

    name: str
    kind: Kind
    number: int
    state: int

    @property
    def ending(self) -> str:
        """The ending of a metadata file's name."""
        return next((one for one in (FOREIGN, PACKED, PLAIN, PACKED_BEHIND) if self.name.endswith(one)), "")

    @property
    def stem(self) -> str:
        """The name without its ending."""
        return self.name.removesuffix(self.ending)


@dataclass(frozen=True)
class Hint:
    """A `version-hint.text`: a number, the name of a file, or nothing that can be read (both None)."""

    content: bytes
    number: int | None = None
    name: str | None = None


@dataclass
class Folder:
    """What is in a metadata folder."""

    states: int
    files: dict[str, File] = field(default_factory=dict)
    hint: Hint | None = None

    def add(self, name: str, kind: Kind, number: int, state: int) -> None:
        """Add a file; a name that is taken, as a file or as a folder, stays as it is."""
        kind = "unordered" if name.endswith(FOREIGN) else kind
        taken = (one for one in self.files if one.startswith(f"{name}/") or name.startswith(f"{one}/"))
        if name not in self.files and next(taken, None) is None:
            self.files[name] = File(name, kind, number, state % self.states)

    def of(self, *kinds: Kind) -> list[File]:
        """The files of some kinds, by number."""
        return sorted((one for one in self.files.values() if one.kind in kinds), key=lambda one: one.number)

    def __str__(self) -> str:
        hint = None if self.hint is None else self.hint.content
        return f"{sorted(self.files)}, hint {hint!r}"

    def current(self) -> File | None:
        """The file that has to be read at first; None where the folder has to be refused."""
        hint = self.hint
        if hint is not None and hint.name is not None:
            is_whole = hint.name.endswith((*ENDINGS, FOREIGN))
            return self.files.get(hint.name) if is_whole else self.first(hint.name)
        number = None if hint is None else hint.number
        if number is not None and (chain := list(self.following(number))):
            return None if self.of("catalog") else chain[-1]
        ranked = self.of("hadoop", "catalog")
        is_mixed = len({one.kind for one in ranked}) > 1
        if not ranked or is_mixed or self.of("unordered"):
            return None
        newest = [one for one in ranked if one.number == ranked[-1].number]
        return newest[0] if len(newest) == 1 and newest[0].number >= (number or 0) else None

    def following(self, number: int) -> Iterator[File]:
        """The file of a number, and those after it without a gap: writers of hints may have been cut off."""
        while (found := self.first(f"v{number}")) is not None:
            yield found
            number += 1

    def first(self, stem: str) -> File | None:
        """The file of this name without its ending."""
        return next((self.files[stem + ending] for ending in ENDINGS if stem + ending in self.files), None)

    def write(self, root: Path, contents: Sequence[bytes], before: "Folder | None" = None) -> None:
        """Write the `metadata` folder of a table; files that were there before stay what they are."""
        metadata = root / "metadata"
        if before is None and metadata.exists():
            shutil.rmtree(metadata)
        kept = {} if before is None else before.files
        for name in kept.keys() - self.files.keys():
            (metadata / name).unlink()
        for name, file in self.files.items():
            if name not in kept:
                path = metadata / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_packed(file, contents[file.state]))
        metadata.mkdir(parents=True, exist_ok=True)
        hint = metadata / "version-hint.text"
        hint.unlink(missing_ok=True)
        if self.hint is not None:
            hint.write_bytes(self.hint.content)


def _packed(file: File, content: bytes) -> bytes:
    if file.ending == FOREIGN:
        return bytes(pa.compress(content, "zstd", asbytes=True))
    return gzip.compress(content) if "gz" in file.ending else content


def draw_folder(random: Random, states: int) -> Folder:
    """A folder of one to six numbered files, of which later numbers tell later states, with other things beside."""
    folder = Folder(states)
    families: Sequence[Kind] = random.choice(
        (("hadoop",), ("hadoop",), ("hadoop",), ("catalog",), ("catalog",), ("hadoop", "catalog"), ())
        if random.random() < 0.5
        else (("hadoop",), ("catalog",))
    )
    for family in families:
        _add_numbers(random, folder, family, random.choice(STARTS), random.randint(1, 5))
    if random.random() < 0.12 and (known := folder.of("hadoop", "catalog")):
        _add_twin(random, folder, random.choice(known[-2:]))
    if random.random() < (0.15 if families else 1):
        _add_unordered(random, folder)
    for pattern in random.sample(NOISE, random.choice((0, 0, 1, 3))):
        folder.add(pattern.format(n=random.randint(1, 99)), "none", 0, states - 1)
    folder.hint = draw_hint(random, folder)
    return folder


def draw_hint(random: Random, folder: Folder) -> Hint | None:
    """No hint, a number that is right, behind, ahead or of nothing, a name, or garbage."""
    form = random.random()
    numbers = [one.number for one in folder.of("hadoop")] or [one.number for one in folder.of("catalog")]
    if form < 0.3:
        return None
    if form < 0.65 and numbers:
        ahead, behind = numbers[-1] + random.randint(1, 3), max(0, numbers[0] - 1)
        return _spelt(
            random, random.choice((numbers[-1], numbers[-1], random.choice(numbers), ahead, behind))
        )
    if form < 0.85:
        return _named(random, folder)
    return Hint(random.choice(GARBAGE))


def change(random: Random, folder: Folder) -> Folder:
    """The folder after something has happened to it: mostly commits, with and without a new hint."""
    changed = Folder(folder.states, dict(folder.files), folder.hint)
    numbered = changed.of("hadoop", "catalog")
    form = random.random()
    if form < 0.5 and numbered:
        last = numbered[-1]
        step = random.choice((1, 1, 1, 2))
        _add_numbers(
            random,
            changed,
            last.kind,
            last.number + step,
            random.randint(1, 3),
            last.state + 1,
            has_gaps=False,
        )
        newest = changed.of(last.kind)[-1]
        if random.random() < 0.7 and changed.hint is not None and changed.hint.number is not None:
            changed.hint = _spelt(random, newest.number)
        elif changed.hint is not None and changed.hint.name is not None:
            changed.hint = Hint(newest.name.encode(), name=newest.name)
        if random.random() < 0.3:
            del changed.files[numbered[0].name]
    elif form < 0.6:
        other: Kind = "catalog" if changed.of("hadoop") else "hadoop"
        _add_numbers(random, changed, other, 0, 1)
    elif form < 0.7:
        _add_unordered(random, changed)
    elif form < 0.8 and numbered:
        _add_twin(random, changed, numbered[-1])
    elif form < 0.95:
        changed.hint = draw_hint(random, changed)
    elif numbered:
        del changed.files[random.choice(numbered).name]
    return changed


def _add_numbers(
    random: Random,
    folder: Folder,
    family: Kind,
    start: int,
    count: int,
    state: int = 0,
    *,
    has_gaps: bool = True,
) -> None:
    number = start
    for place in range(count):
        if has_gaps and place and random.random() < 0.1:
            number += random.randint(1, 3)
        folder.add(_name(random, family, number), family, number, state + place)
        number += 1


def _name(random: Random, family: Kind, number: int) -> str:
    ending = random.choices((*ENDINGS, FOREIGN), (70, 15, 10, 1))[0]
    if family == "hadoop":
        return f"v{number}{ending}"
    width = random.choice((5, 5, 5, 1))
    return f"{number:0{width}d}-{_uuid(random)}{ending}"


def _uuid(random: Random) -> str:
    digits = f"{random.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _add_twin(random: Random, folder: Folder, one: File) -> None:
    """Another file of the same number, which tells an earlier state."""
    if one.kind == "catalog":
        name = f"{one.number:05d}-{_uuid(random)}{PLAIN}"
    else:
        others = [ending for ending in ENDINGS if ending != one.ending]
        name = random.choice((f"v{one.number}{random.choice(others)}", f"v0{one.number}{PLAIN}"))
    folder.add(name, one.kind, one.number, max(0, one.state - 1))


def _add_unordered(random: Random, folder: Folder) -> None:
    for pattern in random.sample(UNORDERED, random.choice((1, 1, 2))):
        name = pattern.format(random.choice((PLAIN, PLAIN, PACKED)), n=random.randint(1, 9))
        folder.add(name, "unordered", 0, random.randrange(folder.states))


def _spelt(random: Random, number: int) -> Hint:
    text = random.choice(("{}", "{}", "{}", "{}\n", " {}\r\n", "00{}")).format(number)
    return Hint(text.encode(), number=number)


def _named(random: Random, folder: Folder) -> Hint:
    """The name of a file that is there or not, with or without its ending."""
    there = [one for one in folder.of("hadoop", "catalog", "unordered") if _is_plain(one.name)]
    names = [one.name for one in there] * 3 + list(_missing(random))
    name = random.choice(names)
    file = folder.files.get(name) or File(name, "none", 0, 0)
    text = name if random.random() < 0.6 else file.stem
    if text.isdigit():
        return Hint(text.encode(), number=int(text))
    return Hint((text + random.choice(("", "\n"))).encode(), name=text)


def _missing(random: Random) -> Iterator[str]:
    """Names of metadata files that no folder has."""
    yield f"v888{random.choice(ENDINGS)}"
    yield f"00888-{_uuid(random)}{random.choice(ENDINGS)}"
    yield f"/elsewhere/metadata/v1{PLAIN}"
    yield f"../v1{PLAIN}"
    yield "a/b"


def _is_plain(name: str) -> bool:
    """Whether a hint can have the name: letters, digits, dots, lines and underscores of ASCII."""
    return name.isascii() and all(one.isalnum() or one in "._-" for one in name)

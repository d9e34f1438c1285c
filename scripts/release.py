"""Prepare and check a release; nothing is published.

    python scripts/release.py check           # build sdist and wheel, and check them in a clean environment
    python scripts/release.py prepare 0.1.0   # set the version, and write a section of the changelog

What is built stays in build/release/dist.
"""

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / "build" / "release"
CONSTRAINTS = ROOT / "constraints.txt"
_VERSION = re.compile(r'^__version__ = "(?P<version>[^"]+)"$', re.MULTILINE)
_FINAL = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_UNRELEASED = "## Unreleased\n"


def main() -> None:
    """Do what the command line names."""
    parser = argparse.ArgumentParser(description="Prepare and check a release; nothing is published.")
    steps = parser.add_subparsers(dest="step", required=True)
    check_step = steps.add_parser("check", help="build and check sdist and wheel")
    check_step.add_argument(
        "--demo", action=argparse.BooleanOptionalAction, default=True, help="run the demo too"
    )
    prepare_step = steps.add_parser("prepare", help="write the version and the changelog section")
    prepare_step.add_argument("version")
    prepare_step.add_argument("--date", default=datetime.datetime.now(tz=datetime.UTC).date().isoformat())
    given = parser.parse_args()
    if given.step == "prepare":
        prepare(ROOT, given.version, given.date)
        print(f"Version {given.version}. Look at the diff, then: make test release-check")
    else:
        check(demo=given.demo)


def prepare(root: Path, version: str, date: str) -> None:
    """Write a version into the package, the citation and the changelog."""
    if not _FINAL.fullmatch(version):
        sys.exit(f"version: expected a number such as 0.1.0 or 0.2.0rc1, got {version}")
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    # All is checked before anything is written.
    changed = with_section(text, version, date)
    for file, pattern, line in (
        (root / "src" / "calibrant" / "_version.py", _VERSION, f'__version__ = "{version}"'),
        (root / "CITATION.cff", re.compile(r"^version: .*$", re.MULTILINE), f"version: {version}"),
    ):
        before = file.read_text(encoding="utf-8")
        after, count = pattern.subn(line, before)
        if count != 1:
            sys.exit(f"{file.name}: expected one line with the version, got {count}")
        file.write_text(after, encoding="utf-8")
    changelog.write_text(changed, encoding="utf-8")


def with_section(changelog: str, version: str, date: str) -> str:
    r"""Return a changelog whose unreleased changes have a version and a date, below a new empty section.

    Example:
        >>> print(with_section("# C\n\n## Unreleased\n\n- New.\n", "0.2.0", "2026-01-31"))
        # C
        <BLANKLINE>
        ## Unreleased
        <BLANKLINE>
        ## 0.2.0 - 2026-01-31
        <BLANKLINE>
        - New.
        <BLANKLINE>
    """
    if changelog.count(_UNRELEASED) != 1:
        sys.exit('CHANGELOG.md: expected one section "## Unreleased"')
    if f"## {version} " in changelog:
        sys.exit(f"CHANGELOG.md: expected a new version, got {version}, which has a section already")
    before, after = changelog.split(_UNRELEASED)
    if not after.partition("\n## ")[0].strip():
        sys.exit("CHANGELOG.md: expected changes below Unreleased, got none")
    return f"{before}{_UNRELEASED}\n## {version} - {date}\n{after}"


def check(*, demo: bool) -> None:
    """Build sdist and wheel and check them in an environment that does not know the repository."""
    shutil.rmtree(RELEASE, ignore_errors=True)
    tools, clean = RELEASE / "tools", RELEASE / "clean"
    venv.create(tools, with_pip=True)
    _run(tools, "-m", "pip", "install", "--quiet", "build", "twine")
    # The wheel is built from the sdist, so that what the sdist lacks is noticed.
    _run(tools, "-m", "build", "--outdir", RELEASE / "dist", ROOT)
    built = sorted((RELEASE / "dist").iterdir())
    _run(tools, "-m", "twine", "check", "--strict", *built)
    wheel = next(file for file in built if file.suffix == ".whl")
    if missing := missing_files(wheel):
        sys.exit(f"{wheel.name}: expected all files of src/calibrant, got none of {', '.join(missing)}")
    venv.create(clean, with_pip=True)
    _run(clean, "-m", "pip", "install", "--quiet", "--prefer-binary", "-c", CONSTRAINTS, wheel)
    found = _run(clean, "-c", "import calibrant; print(calibrant.__version__)", cwd=RELEASE).strip()
    if found != version_of(ROOT):
        sys.exit(f"{wheel.name}: expected version {version_of(ROOT)}, got {found}")
    if demo:
        print(_run(clean, "-m", "calibrant", "demo", "--out", RELEASE / "demo", cwd=RELEASE))
    print(f"{', '.join(file.name for file in built)}: built, checked and imported; nothing was published.")


def version_of(root: Path) -> str:
    """Return the version that the source has."""
    match = _VERSION.search((root / "src" / "calibrant" / "_version.py").read_text(encoding="utf-8"))
    assert match is not None
    return match["version"]


def missing_files(wheel: Path) -> list[str]:
    """Return files of the package that are not in a wheel."""
    source = ROOT / "src"
    wanted = {
        file.relative_to(source).as_posix()
        for file in (source / "calibrant").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    return sorted(wanted - set(zipfile.ZipFile(wheel).namelist()))


def _run(environment: Path, *arguments: str | Path, cwd: Path = ROOT) -> str:
    """Run Python of an environment and return what it prints; end with its errors if it fails."""
    command = [str(environment / "bin" / "python"), *map(str, arguments)]
    result = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command[1:])} ended with code {result.returncode}\n{result.stdout}")
    return result.stdout


if __name__ == "__main__":
    main()

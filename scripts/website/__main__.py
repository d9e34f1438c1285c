"""Build the site strictly and check it: ``make docs``, or ``python -m scripts.website [FOLDER]``.

Prints how many pages were built, how many links were checked and how many public names are documented. Ends
with code 1 if MkDocs warns of anything, or if a link, a name or a page is lost.
"""

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, MkDocsException
from scripts.website.checks import check_site
from scripts.website.names import ROOT


def main() -> None:
    """Build into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Build and check the documentation site.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site")
    folder = parser.parse_args().folder.resolve()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # an advertisement of Material for its successor
    started = time.perf_counter()
    try:
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    except (Abort, MkDocsException) as error:
        sys.exit(f"The site was not built: {error}")
    finally:
        logging.shutdown()
    report = check_site(folder)
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(
        f"{report.pages} pages, {report.links:,} links checked (not {report.outside} addresses elsewhere), "
        f"{report.documented} of {report.names} public names documented, "
        f"{time.perf_counter() - started:.0f} s: {folder}"
    )
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()

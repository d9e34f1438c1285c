"""20 Newsgroups and DBpedia in the layout of their archives, packed and unpacked."""

import csv
import io
import tarfile

import pytest

from calibrant.errors import CalibrantError, FormatError, InputError
from calibrant.training.datasets import load_dataset
from calibrant.training.datasets import published_texts as module
from calibrant.training.datasets.published_texts import published_texts

MESSAGE = "From: someone@host\nNewsgroups: {group}\nSubject: nothing\n\nBody {number} caf\xe9\n\nend"


def newsgroups(folder):
    """Write a small 20 Newsgroups: 12 messages of each of two groups for training, 3 for test."""
    for part, n in (("train", 12), ("test", 3)):
        for group in ("sci.space", "rec.autos"):
            inside = folder / f"20news-bydate-{part}" / group
            inside.mkdir(parents=True)
            for number in range(n):
                text = MESSAGE.format(group=group, number=number)
                (inside / str(60000 + number)).write_bytes(text.encode("latin-1"))
    return folder


def dbpedia(folder, n=(20, 4)):
    """Write a small DBpedia of two classes, without headers."""
    inside = folder / "dbpedia_csv"
    inside.mkdir(parents=True)
    (inside / "classes.txt").write_text("Village\nCompany\n")
    (inside / "readme.txt").write_text("about")
    for part, count in zip(("train", "test"), n, strict=True):
        rows = [[str(1 + i % 2), f"Title {i}", f' He said "{i}", we say \u00e9'] for i in range(count)]
        with (inside / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    return folder


def packed(folder, name):
    """Pack all that is in a folder, as the archives are: with folders as members of their own."""
    path = folder.parent / name
    with tarfile.open(path, "w:gz") as archive:
        for entry in sorted(folder.iterdir()):
            archive.add(entry, arcname=entry.name)
    return path


@pytest.fixture(params=["folder", "archive", "folder of the archive"])
def stored(request, tmp_path):
    """Return what gives a set in one of the forms in which it is stored."""

    def give(made, name):
        if request.param == "folder":
            return made
        archive = packed(made, name)
        if request.param == "archive":
            return archive
        (tmp_path / "holder").mkdir()
        return archive.rename(tmp_path / "holder" / name).parent

    return give


def test_newsgroups_are_read_by_date_and_group(tmp_path, stored):
    path = stored(newsgroups(tmp_path / "raw"), "20news-bydate.tar.gz")
    parts = published_texts(path)
    assert {part: len(texts) for part, (texts, _) in parts.items()} == {"train": 24, "test": 6}
    texts, classes = parts["train"]
    assert set(classes) == {"sci.space", "rec.autos"}
    for text, group in zip(texts, classes, strict=True):
        assert f"Newsgroups: {group}" in text
        assert "caf\xe9" in text
    splits = load_dataset("text", path=path, validation=0.25)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [18, 6, 6]
    assert splits.train.class_names == ("rec.autos", "sci.space")
    assert "newsgroups" in splits.words


def test_headers_end_at_the_first_empty_line(tmp_path, stored):
    path = stored(newsgroups(tmp_path / "raw"), "20news-bydate.tar.gz")
    texts, _ = published_texts(path, headers=False)["test"]
    assert sorted(texts) == sorted(2 * [f"Body {number} caf\xe9\n\nend" for number in range(3)])
    assert "newsgroups" not in load_dataset("text", path=path, headers=False).words


def test_a_message_without_an_empty_line_or_with_other_line_ends_keeps_its_words(tmp_path):
    raw = newsgroups(tmp_path)
    (raw / "20news-bydate-test" / "rec.autos" / "60000").write_bytes(b"only one line")
    (raw / "20news-bydate-test" / "rec.autos" / "60001").write_bytes(b"From: x\r\n\r\nthe body\r\n")
    texts, _ = published_texts(raw, headers=False)["test"]
    assert "only one line" in texts
    assert "the body\n" in texts


def test_dbpedia_counts_classes_from_1_and_joins_title_and_text(tmp_path, stored):
    path = stored(dbpedia(tmp_path / "raw"), "dbpedia_csv.tar.gz")
    texts, classes = published_texts(path)["train"]
    assert classes == ["Village", "Company"] * 10
    assert texts[3] == 'Title 3  He said "3", we say \u00e9'
    splits = load_dataset("text", path=path, validation=0.2)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [16, 4, 4]
    assert splits.train.class_names == ("Company", "Village")


def test_the_unpacked_folder_of_dbpedia_itself_is_read(tmp_path):
    raw = dbpedia(tmp_path)
    assert published_texts(raw / "dbpedia_csv") == published_texts(raw)


def test_a_packed_set_has_the_order_of_the_unpacked_one(tmp_path):
    raw = newsgroups(tmp_path / "raw")
    members = [(f.relative_to(raw).as_posix(), f.read_bytes()) for f in raw.rglob("*") if f.is_file()]
    backwards = [(*each, tarfile.REGTYPE) for each in sorted(members, reverse=True)]
    assert published_texts(archive_of(tmp_path / "a.tgz", *backwards)) == published_texts(raw)


def test_nothing_is_written_when_an_archive_is_read(tmp_path):
    path = packed(newsgroups(tmp_path / "raw"), "20news-bydate.tar.gz")
    before = sorted(tmp_path.rglob("*"))
    load_dataset("text", path=path)
    assert sorted(tmp_path.rglob("*")) == before


def archive_of(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content)
            if kind == tarfile.SYMTYPE:
                member.linkname, member.size = "/etc/passwd", 0
            archive.addfile(member, io.BytesIO(content))
    return path


def test_links_and_names_that_lead_elsewhere_are_no_texts(tmp_path):
    good = [
        (f"./20news-bydate-{part}/{group}/1", b"a\n\nb", tarfile.REGTYPE)
        for part in ("train", "test")
        for group in ("x", "y")
    ]
    bad = [
        ("20news-bydate-train/x/2", b"", tarfile.SYMTYPE),
        ("../20news-bydate-train/x/3", b"outside", tarfile.REGTYPE),
        ("20news-bydate-train/x/._4", b"hidden", tarfile.REGTYPE),
    ]
    parts = published_texts(archive_of(tmp_path / "a.tar.gz", *good, *bad))
    assert parts["train"] == (["a\n\nb"] * 2, ["x", "y"])


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    path = archive_of(tmp_path / "a.tar.gz", ("classes.txt", bytes(101), tarfile.REGTYPE))
    with pytest.raises(FormatError, match=r"^a.tar.gz: expected at most 0 GB of text, got more"):
        published_texts(path)


def broken(path, content):
    path.write_bytes(content)
    return path


def without_test(folder):
    for file in (folder / "20news-bydate-test").rglob("*"):
        if file.is_file():
            file.unlink()
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda tmp: broken(tmp / "a.tar.gz", b"no archive"),
            r"a.tar.gz: expected an archive of texts, got a file that cannot be read as such",
        ),
        (
            lambda tmp: broken(
                tmp / "b.tgz", packed(newsgroups(tmp / "raw"), "x.tar.gz").read_bytes()[:-200]
            ),
            r"b.tgz: expected an archive of texts, got a file that cannot be read as such",
        ),
        (
            lambda tmp: archive_of(tmp / "c.tar.gz", ("other/file", b"x", tarfile.REGTYPE)),
            r"c.tar.gz: expected 20news-bydate-train/ or classes.txt, got other; name another archive",
        ),
        (
            lambda tmp: without_test(newsgroups(tmp / "d")),
            r"d: 20news-bydate-test: expected a folder of texts for each group, got none",
        ),
        (
            lambda tmp: dbpedia(tmp / "e", n=(4, 0)),
            r"dbpedia_csv: test.csv: expected at least one line, got none",
        ),
    ],
)
def test_what_is_not_whole_is_refused_in_one_sentence(tmp_path, make, message):
    with pytest.raises(CalibrantError, match=f"^{message}"):
        load_dataset("text", path=make(tmp_path))


@pytest.mark.parametrize("line", ["3,title,text", "0,title,text", "1,title", "x,title,text"])
def test_a_line_of_dbpedia_that_is_none_is_named(tmp_path, line):
    raw = dbpedia(tmp_path)
    with (raw / "dbpedia_csv" / "train.csv").open("a") as file:
        file.write(line + "\n")
    expected = r"^dbpedia_csv: train.csv: expected a class from 1 to 2, a title and a text, got .* in line 21"
    with pytest.raises(FormatError, match=expected):
        published_texts(raw)


def test_headers_are_an_option_of_newsgroups_alone(tmp_path):
    with pytest.raises(InputError, match=r"headers: expected true for DBpedia"):
        load_dataset("text", path=dbpedia(tmp_path / "raw"), headers=False)
    (tmp_path / "a.csv").write_text("text,label\nx,y\n")
    with pytest.raises(InputError, match=r"^headers: expected true for a.csv, which is not 20 Newsgroups"):
        load_dataset("text", path=tmp_path / "a.csv", headers=False)

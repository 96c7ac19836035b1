import gzip
import json

import numpy as np
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import data_root, load
from offbeat.data.text import encode, vocabulary_of, words

REVIEWS = [("A bad, BAD film.<br /><br />Don't!", 0), ("good film", 1), ("bad", 0), ("good good film", 1)]


def write_lines(root, train=REVIEWS, test=REVIEWS[1:3]):
    folder = root / "imdb"
    folder.mkdir(exist_ok=True)
    for name, part in (("train", train), ("test", test)):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            for text, label in part:
                file.write(json.dumps({"text": text, "label": label}) + "\n")
    return folder


def test_words():
    assert words("It's 10/10 — “naïve”, isn't_it?<br/>'Yes'") == [
        "it's", "10", "10", "naïve", "isn't", "it", "yes",
    ]  # fmt: skip


def test_vocabulary_by_frequency_then_alphabet():
    texts = [["b", "a", "c"], ["c", "d"]]
    assert vocabulary_of(texts, 5) == {"c": 2, "a": 3, "b": 4}
    assert vocabulary_of(texts, 4) == {"c": 2, "a": 3}  # a smaller one keeps its ids
    assert encode([["d", "c"], ["a", "b", "c", "c"]], vocabulary_of(texts, 4), 3).tolist() == [
        [1, 2, 0],
        [3, 1, 2],
    ]


def test_imdb_lines(tmp_path):
    write_lines(tmp_path)
    source = load("imdb", root=tmp_path, options={"vocabulary": 5, "length": 4})
    # bad, film and good three times each
    assert source.train.x.tolist() == [[1, 2, 2, 3], [4, 3, 0, 0], [2, 0, 0, 0], [4, 4, 3, 0]]
    assert source.train.y.tolist() == [0, 1, 0, 1]
    assert source.test.x.tolist() == [[4, 3, 0, 0], [2, 0, 0, 0]]
    assert source.train.x.dtype == torch.int64
    part = load("imdb", root=tmp_path, samples=1, options={"vocabulary": 5, "length": 4})
    assert part.train.x[0].tolist() in source.train.x.tolist()  # the vocabulary is that of all texts


def test_imdb_official_folders_are_the_same(tmp_path):
    (tmp_path / "a").mkdir()
    write_lines(tmp_path / "a")
    for part, reviews in (("train", REVIEWS), ("test", REVIEWS[1:3])):
        for number, (text, label) in enumerate(reviews):
            folder = tmp_path / "b" / "imdb" / "aclImdb" / part / ("neg", "pos")[label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}_1.txt").write_text(text)
    options = {"vocabulary": 9, "length": 6}
    a, b = (load("imdb", root=tmp_path / which, options=options) for which in "ab")
    assert sorted(a.train.x.tolist()) == sorted(b.train.x.tolist())
    assert sorted(a.test.y.tolist()) == sorted(b.test.y.tolist())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"torn", r"train.jsonl.gz: cannot be read"),
        (gzip.compress(b'{"text": "a", "label": 1}\n{"text": "a"}\n', mtime=0), "line 2 is not"),
        (gzip.compress(b'{"text": "a", "label": 2}\n', mtime=0), "line 1 is not"),
        (gzip.compress(b"[]\n", mtime=0), "line 1 is not"),
        (gzip.compress(b"", mtime=0), "there is no review"),
        (gzip.compress(b"[" * 2**20, mtime=0), "line 1 is not"),
        (gzip.compress(bytes(2**28 + 1), 1, mtime=0), "unpacks to more than the 268435456 bytes"),
    ],
    ids=["torn", "no label", "another label", "a list", "empty", "nested", "a bomb"],
)
def test_reviews_that_cannot_be_read(tmp_path, content, message):
    (write_lines(tmp_path) / "train.jsonl.gz").write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        load("imdb", root=tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_reviews(tmp_path):
    with pytest.raises(UsageError, match=r"put train.jsonl.gz or the folder aclImdb/train there"):
        load("imdb", root=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 1}, "options of dataset 'imdb': vocabulary = 1 is not allowed"),
        ({"size": 1}, "options of dataset 'imdb': unknown key size"),
    ],
)
def test_options_that_are_not_allowed(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        load("imdb", root=tmp_path, options=options)


def test_a_dataset_without_options():
    with pytest.raises(UsageError, match="dataset 'mnist' has no options, so length is not allowed"):
        load("mnist", options={"length": 3})


@pytest.mark.thorough
def test_real_reviews():
    if not (data_root() / "imdb").is_dir():
        pytest.skip("imdb is not on this machine")
    source = load("imdb", test_samples=100, options={"vocabulary": 10_000, "length": 200})
    assert source.train.x.shape == (25_000, 200)
    assert torch.bincount(source.train.y).tolist() == [12_500, 12_500]
    assert source.train.x.max() == 9_999
    assert (source.train.x == 1).float().mean() < 0.1


def write_sent140(root, users=(("ann", 100), ("bob", 99), ("cy", 105))):
    folder = root / "sent140"
    folder.mkdir(exist_ok=True)
    tweets = [(user, number) for user, count in users for number in range(count)]
    lines = [f'"{(0, 4)[n % 2]}","{n}","Mon","NO_QUERY","{user}","so {user} ""{n}"" é"' for user, n in tweets]
    path = folder / "training.1600000.processed.noemoticon.csv"
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")
    return path


def test_sent140_users_with_100_tweets_are_groups(tmp_path):
    write_sent140(tmp_path)
    source = load("sent140", root=tmp_path)
    assert source.group_names == ("ann", "cy")
    assert np.bincount(source.groups).tolist() == [80, 84]
    assert len(source.test) == 20 + 21
    assert source.train.x.shape == (164, 64)
    assert source.train.y[:4].tolist() == [0, 1, 0, 1]
    # so and é are everywhere, cy is more frequent than ann
    assert source.train.x[0, :2].tolist() == [2, 5]
    assert source.train.x[80, :2].tolist() == [2, 4]
    part = load("sent140", root=tmp_path, samples=10, seed=3)
    assert len(part.groups) == 10


def test_sent140_that_is_not_intact(tmp_path):
    with pytest.raises(UsageError, match=r"put the file training.1600000.processed.noemoticon.csv there"):
        load("sent140", root=tmp_path)
    path = write_sent140(tmp_path, [("ann", 99)])
    whole = path.read_bytes()
    path.write_bytes(b"x" * 200_000)
    with pytest.raises(UsageError, match="cannot be read"):
        load("sent140", root=tmp_path)
    path.write_bytes(whole)
    with pytest.raises(UsageError, match="no user has 100 tweets"):
        load("sent140", root=tmp_path)
    path.write_text('"4","1","d","q","u","t"\n"2","1","d","q","u","t"\n')
    with pytest.raises(UsageError, match="row 2 has not 6 columns that begin with 0 or 4"):
        load("sent140", root=tmp_path)


def write_sst2(root, train="sentence\tlabel\ngood film \t1\nbad \t0\n"):
    folder = root / "sst2" / "SST-2"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.tsv").write_text(train)
    (folder / "dev.tsv").write_text("sentence\tlabel\nfilm \t0\n")


def test_sst2(tmp_path):
    write_sst2(tmp_path)
    source = load("sst2", root=tmp_path, options={"length": 3})
    assert source.train.x.tolist() == [[4, 3, 0], [2, 0, 0]]
    assert source.train.y.tolist() == [1, 0]
    assert source.test.x.tolist() == [[3, 0, 0]]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("sentence\tlabel\ngood\n", "line 2 is no sentence, tab, 0 or 1"),
        ("label\tsentence\nx\t1\n", "needs the columns sentence and label"),
        ("sentence\tlabel\n", "needs the columns sentence and label"),
    ],
)
def test_sst2_that_is_not_intact(tmp_path, train, message):
    write_sst2(tmp_path, train)
    with pytest.raises(UsageError, match=message):
        load("sst2", root=tmp_path)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_pretrained_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    write_sst2(tmp_path)
    with pytest.raises(UsageError, match=r"tokenizer = .* cannot be loaded"):
        load("sst2", root=tmp_path, options={"tokenizer": str(tmp_path / "none")})
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nfilm\nba\n##d\n")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    options = {"tokenizer": str(tmp_path / "bert"), "length": 5}
    source = load("sst2", root=tmp_path, options=options)
    assert source.train.x.tolist() == [[2, 5, 6, 3, 0], [2, 7, 8, 3, 0]]

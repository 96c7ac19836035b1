"""The cache of the clients' last updates: what an aggregation changes counts once it is committed."""

import torch

from offbeat.core.client_cache import CacheEntry, ClientCache
from offbeat.core.schedule import Task


def task(number: int, client: int, base: int = 0) -> Task:
    return Task(number, client, base, 1, 0.0)


def filled() -> ClientCache:
    cache = ClientCache()
    for client in (2, 0):
        cache.put(task(client, client), torch.tensor([float(client)]))
    cache.commit()
    return cache


def content(cache: ClientCache) -> dict[int, float]:
    return {client: float(found[1]) for client in cache.entries() if (found := cache.get(client))}


def test_what_is_put_and_dropped_shows_at_once_and_can_be_taken_back():
    cache = filled()
    cache.put(task(5, 2, base=4), torch.tensor([9.0]), rate=0.5)
    cache.put(task(6, 7), torch.tensor([7.0]))
    cache.drop([0, 3])
    assert content(cache) == {2: 9.0, 7: 7.0}
    assert (len(cache), 0 in cache, 7 in cache) == (2, False, True)
    cache.revert()
    assert content(cache) == {0: 0.0, 2: 2.0}
    assert cache.entries() == {0: CacheEntry(0, 0), 2: CacheEntry(2, 0)}


def test_what_is_committed_stays():
    cache = filled()
    cache.put(task(5, 2, base=4), torch.tensor([9.0]), rate=0.5)
    cache.drop([0])
    cache.commit()
    cache.revert()
    assert content(cache) == {2: 9.0}
    assert cache.entries() == {2: CacheEntry(5, 4, 0.5)}
    assert cache.nbytes == 4
    cache.clear()
    assert (content(cache), cache.nbytes, len(cache)) == ({}, 0, 0)


def test_one_that_is_put_and_dropped_in_one_aggregation_leaves_nothing():
    cache = ClientCache()
    cache.put(task(1, 1), torch.ones(1))
    cache.drop([1])
    cache.commit()
    assert (content(cache), cache.nbytes) == ({}, 0)


def test_a_vector_is_kept_as_it_is_but_a_part_of_a_longer_one_is_copied():
    cache, whole, long = ClientCache(), torch.ones(3), torch.arange(8.0)
    cache.put(task(0, 0), whole)
    cache.put(task(1, 1), long[2:4])
    cache.commit()
    assert cache.peek(0) is whole
    long.zero_()
    assert cache.peek(1).tolist() == [2.0, 3.0]

"""Which server has a name, by the vectors that hfxbus 2.2.0 gives. HB-02, HB-40."""

import unicodedata

import pytest

from penstock.base.errors import WrongCall
from penstock.jobs import Jobs
from penstock.jobs.routing import Routes, crc16

VECTORS = {  # route: CRC-16, place of 2, 3 and 5 servers
    "concat": (56088, 0, 0, 3),
    "worldConcat": (39363, 1, 0, 3),
    "worldconcat": (63940, 0, 1, 0),
    "orders": (15963, 1, 0, 3),
    "billing": (12410, 0, 2, 0),
    "a": (59585, 1, 2, 0),
    "b": (59777, 1, 2, 2),
    "": (0, 0, 0, 0),
    "123": (47620, 0, 1, 0),
    "route with space": (14422, 0, 1, 2),
    unicodedata.normalize("NFC", "Ünïcödé"): (45944, 0, 2, 4),
    "日本": (40393, 1, 1, 3),
    "😀": (20073, 1, 0, 3),
    "hfxbus": (60382, 0, 1, 2),
    "stream:1": (47464, 0, 1, 4),
    "stream:2": (47144, 0, 2, 4),
    "V1StGXR8_Z5jdHi6": (1905, 1, 0, 0),
    "abcdefghijklmnop": (34355, 1, 2, 0),
    "0123456789ABCDEF": (3941, 1, 2, 1),
    "_" * 16: (42671, 1, 2, 1),
}


@pytest.mark.parametrize("route", VECTORS)
def test_HB_02_places_are_those_of_hfxbus(route: str) -> None:
    crc, *places = VECTORS[route]
    assert crc16(route) == crc
    assert [Routes(count).place(route) for count in (1, 2, 3, 5)] == [0, *places]


def test_the_check_value_of_CRC_16_ARC() -> None:
    assert crc16("123456789") == 0xBB3D


def test_HB_02_static_routes_are_names_or_their_CRC_and_names_with_one_CRC_share_one() -> None:
    routes = Routes(3, {"concat": 2, 15963: 1})
    assert [routes.place(name) for name in ("concat", "orders", "a")] == [2, 1, 2]
    collision = "stream:1", next(name for name in map(str, range(200_000)) if crc16(name) == crc16("stream:1"))
    assert {Routes(3, {collision[0]: 2}).place(name) for name in collision} == {2}


def test_a_route_to_a_server_that_is_not_there_is_refused() -> None:
    for place in (-1, 2):
        with pytest.raises(WrongCall, match="place"):
            Jobs("redis://a", "redis://b", routes={"s": place})
    with pytest.raises(WrongCall, match="URL"):
        Jobs()

"""`/v1/shards`: a map replaces only the version that its author read."""

from tests.http.conftest import World


async def test_map_of_another_version_is_refused(world: World) -> None:
    first = (await world.ask("GET", "/v1/shards")).headers["ETag"]
    assert first == '"0"'
    body = {"shards": [{"shard_id": "a"}]}
    assert (await world.ask("PUT", "/v1/shards", body, **{"If-Match": first})).json() == {"changed": True}
    answer = await world.ask("PUT", "/v1/shards", {"shards": []}, **{"If-Match": first})
    assert (answer.status_code, answer.json()["type"]) == (412, "urn:tocsin:problem:precondition-failed")
    assert "the shard map does not have the expected version" in answer.json()["detail"]
    current = await world.ask("GET", "/v1/shards")
    assert answer.headers["ETag"] == current.headers["ETag"] == f'"{current.json()["version"]}"'
    assert current.json()["shards"] != []
    accepted = await world.ask("PUT", "/v1/shards", {"shards": []}, **{"If-Match": answer.headers["ETag"]})
    assert accepted.json() == {"changed": True}


async def test_map_is_replaced_without_a_condition(world: World) -> None:
    for shard_id in ("a", "b"):
        answer = await world.ask("PUT", "/v1/shards", {"shards": [{"shard_id": shard_id}]})
        assert answer.json() == {"changed": True}


async def test_map_beyond_a_message_is_refused(world: World) -> None:
    labels = {f"label-{n}": "v" * 200 for n in range(20)}
    body = {"shards": [{"shard_id": f"shard-{n}", "labels": labels} for n in range(500)]}
    answer = await world.ask("PUT", "/v1/shards", body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:tocsin:problem:invalid-shard-map")
    assert (await world.ask("GET", "/v1/shards")).json()["shards"] == []

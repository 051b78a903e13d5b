# SPDX-License-Identifier: Apache-2.0
"""What a client of `vllm serve` sees, through the OpenAI client."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import APIStatusError

from tests.serving.conftest import (
    CORRUPT,
    GOOD,
    ITEMS,
    ask,
    audio_data,
    audio_part,
    change,
    image_data,
    image_part,
    outcomes,
    video_data,
    video_part,
)
from tiny import media


def parts(kind, seed, web, media_dir):
    """One item of a kind by way of a scheme: its modality and the content part."""
    modality, scheme = kind.split("-")
    if modality == "image":
        data, name = media.jpeg(320, 240, seed=seed), f"{seed}.jpg"
        part, url = image_part, image_data(seed)
    elif modality == "video":
        data, name = media.video(320, 240, 1, 15, seed=seed), f"{seed}.mp4"
        part, url = video_part, video_data(seed)
    else:
        data, name = media.audio_wav(1, 16000, 1, seed=seed), f"{seed}.wav"
        part, url = audio_part, audio_data(seed)
    if scheme == "http":
        url = web.serve(f"/{name}", data, "application/octet-stream")
    elif scheme == "file":
        (media_dir / name).write_bytes(data)
        url = (media_dir / name).as_uri()
    return modality, part(url)


@pytest.mark.parametrize(
    "kind",
    [f"{m}-{s}" for m in ("image", "video", "audio") for s in ("data", "http", "file")],
)
def test_decoded_once_then_cached(kind, server, client, web, media_dir, unique):
    modality, part = parts(kind, unique, web, media_dir)
    first = change(server, modality, lambda: ask(client, part))
    again = change(server, modality, lambda: ask(client, part))
    assert first == {"decoded": 1}
    assert again == {"cached": 1}


def test_same_bytes_are_one_item_whatever_the_scheme(
    server, client, web, media_dir, unique
):
    for scheme in ("data", "http", "file"):
        modality, part = parts(f"video-{scheme}", unique, web, media_dir)
        expected = {"decoded": 1} if scheme == "data" else {"cached": 1}
        assert change(server, modality, lambda part=part: ask(client, part)) == expected


def test_repeat_gives_the_same_answer(client, unique):
    request = (image_part(image_data(unique)), video_part(video_data(unique)))
    answers = {ask(client, *request).choices[0].message.content for _ in range(3)}
    assert len(answers) == 1


def test_input_audio(server, client, unique):
    part = {
        "type": "input_audio",
        "input_audio": {
            "data": audio_data(unique).partition(",")[2],
            "format": "wav",
        },
    }
    assert change(server, "audio", lambda: ask(client, part)) == {"decoded": 1}
    assert change(server, "audio", lambda: ask(client, part)) == {"cached": 1}


def test_audio_of_a_video_from_one_download(server, client, web, unique):
    video = media.video(320, 240, 1, 15, seed=unique, audio=True)
    path = f"/{unique}-sound.mp4"
    part = video_part(web.serve(path, video, "video/mp4"))
    both = {"extra_body": {"mm_processor_kwargs": {"use_audio_in_video": True}}}
    before = outcomes(server, "audio")
    assert change(server, "video", lambda: ask(client, part, **both)) == {"decoded": 1}
    assert outcomes(server, "audio")["decoded"] == before["decoded"] + 1
    assert web.gets[path] == 1
    assert change(server, "audio", lambda: ask(client, part, **both)) == {"cached": 1}


def test_same_item_twice_in_one_request(server, client, unique):
    part = image_part(image_data(unique))
    first = change(server, "image", lambda: ask(client, part, part))
    assert sum(first.values()) == 2
    again = change(server, "image", lambda: ask(client, part, part))
    assert again == {"cached": 2}


def test_item_by_uuid_alone(client, unique):
    with_data = {**image_part(image_data(unique)), "uuid": f"id-{unique}"}
    by_uuid = {"type": "image_url", "image_url": None, "uuid": f"id-{unique}"}
    first = ask(client, with_data)
    again = ask(client, by_uuid)
    assert again.usage.prompt_tokens == first.usage.prompt_tokens


@pytest.mark.parametrize("modality", CORRUPT)
def test_corrupt_item_is_422_with_its_index(modality, client, server):
    good, corrupt = GOOD[modality], CORRUPT[modality]

    def request():
        with pytest.raises(APIStatusError) as raised:
            ask(client, good, corrupt, good)
        assert raised.value.status_code == 422
        assert raised.value.type == "UnprocessableEntityError"
        assert raised.value.param is None
        assert f"{modality} at index 1" in raised.value.message

    assert change(server, modality, request)["failed"] == 1
    ask(client, good)


def test_index_counts_within_the_modality(client):
    with pytest.raises(APIStatusError) as raised:
        ask(client, GOOD["image"], GOOD["audio"], CORRUPT["image"])
    assert "image at index 1" in raised.value.message


def test_corrupt_items_cost_no_other_request(client, unique):
    def good(i):
        return ask(client, image_part(image_data(unique + i))).usage.prompt_tokens

    def bad(modality):
        with pytest.raises(APIStatusError) as raised:
            ask(client, CORRUPT[modality])
        return raised.value.status_code

    with ThreadPoolExecutor(16) as pool:
        bad_ones = [pool.submit(bad, m) for m in CORRUPT for _ in range(3)]
        good_ones = [pool.submit(good, i) for i in range(7)]
        assert {f.result() for f in bad_ones} == {422}
        assert len({f.result() for f in good_ones}) == 1


def test_message_tells_no_address_of_the_server(client):
    with pytest.raises(APIStatusError) as raised:
        ask(client, CORRUPT["audio"])
    assert "0x" not in raised.value.message


def test_missing_url_keeps_its_status(client, web):
    with pytest.raises(APIStatusError) as raised:
        ask(client, image_part(web.fail("/missing.jpg", 404)))
    assert raised.value.status_code == 422


def test_file_outside_the_allowed_directory_is_refused(client, tmp_path):
    outside = tmp_path / "outside.jpg"
    outside.write_bytes(media.jpeg(32, 32))
    with pytest.raises(APIStatusError) as raised:
        ask(client, image_part(outside.as_uri()))
    assert raised.value.status_code == 400


def test_oversized_image_is_refused_by_its_header(client, server):
    part = image_part(media.data_url(media.huge_png(), "image/png"))

    def request():
        with pytest.raises(APIStatusError) as raised:
            ask(client, part)
        assert raised.value.status_code == 400
        assert "60000" in raised.value.message or "pixels" in raised.value.message

    assert change(server, "image", request) == {}


def test_concurrent_different_videos_are_all_answered(server, client, unique):
    def request(i):
        return ask(client, video_part(video_data(unique + i))).usage.prompt_tokens

    def all_at_once():
        with ThreadPoolExecutor(10) as pool:
            assert len(set(pool.map(request, range(10)))) == 1

    assert change(server, "video", all_at_once) == {"decoded": 10}


def test_nothing_is_held_when_nothing_runs(server, client, unique):
    ask(client, image_part(image_data(unique)), video_part(video_data(unique)))
    metrics = server.metrics()
    assert metrics.total("vllm:mm_media_decodes_running") == 0
    assert metrics.total("vllm:mm_media_decodes_waiting") == 0


def test_metrics_carry_the_model_name(server, client, unique):
    ask(client, image_part(image_data(unique)))
    metrics = server.metrics()
    for name in (
        ITEMS,
        "vllm:mm_media_decode_seconds_count",
        "vllm:mm_media_encoded_bytes",
    ):
        assert metrics.has(name)
        assert all(
            dict(labels)["model_name"] == "tiny"
            for found, labels in metrics
            if found == name
        )


def test_log_says_once_that_it_is_on(server):
    log = server.log.read_text()
    assert log.count("lazy media decode is on") == 1

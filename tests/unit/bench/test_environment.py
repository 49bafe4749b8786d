from bench.environment import cpu_model, describe


def test_the_model_of_the_processor_is_found() -> None:
    assert cpu_model("processor: 0\nmodel name\t: Some CPU @ 2 GHz\n") == "Some CPU @ 2 GHz"
    assert cpu_model("nothing")


def test_the_environment_names_versions_and_machine() -> None:
    found = describe()
    for key in ("at", "commit", "python", "pika", "kernel", "cpu", "cores", "load_before"):
        assert found[key]

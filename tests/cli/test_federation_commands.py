"""The commands call what they say, print what they have done, and refuse what cannot be done."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.cli import main
from fedlightning.cli.federation_commands import Given
from fedlightning.flower.deployment import flower_commands, runs
from fedlightning.flower.deployment.server_folder import ServerFolder
from tests.support.commands import of
from tests.support.deployment import Flower, federation_in, run_of

CONFIGS = of("domain_adaptation", "fed_mm")
NODES = {"nodes": [{"node-id": "1", "status": "online"}]}


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """Puts answers in the place of Flower's commands."""
    server = federation_in(tmp_path / "f")
    (server.link / "nodes.json").write_text('{"a": "1"}')
    stand_in = Flower(server)
    monkeypatch.setattr(Given, "flower", lambda given: stand_in)
    return stand_in


def refusal(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["federation", *map(str, arguments)])
    return str(ended.value.code)


def test_new_makes_a_federation_and_says_what_to_do_with_it(tmp_path, capsys):
    main(["federation", "new", f"{tmp_path}/digits", "--address", "fed.org:443", "--nodes", "a=0", "b=1", *CONFIGS])
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == [
        f"{tmp_path}/digits/{each}" for each in ("server", "nodes/a", "nodes/b", "server/proxy")
    ]
    federation = ServerFolder.find(tmp_path / "digits").federation
    assert (federation.name, str(federation.listen)) == ("digits", "127.0.0.1:8443")


def test_new_says_where_modules_of_this_folder_are_needed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wards.py").write_text(
        "from fedlightning.data import Digits as Records\nfrom fedlightning.tasks import Classification as Triage\n"
    )
    (tmp_path / "other.py").write_text("")
    (tmp_path / "wards.yaml").write_text(
        "model: {class_path: wards.Triage, init_args: {algorithm: fedlightning.algorithms.FedAvg}}\n"
        "data: {class_path: wards.Records}"
    )
    main(["federation", "new", "digits", "--address", "127.0.0.1:8443", "--nodes", "a=0", "--config", "wards.yaml"])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("wards", "other"))]
    assert said == [
        "wards.py: the config takes classes from it. Install it at server and nodes, or copy it into "
        f"{tmp_path}/digits/server and beside every node.yaml."
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digits", "--address", "fed.org", "--nodes", "a=0-1"], "--address=fed.org: there is no port"),
        (["digits", "--address", "fed.org:99999", "--nodes", "a=0-1"], "port 99999 does not exist"),
        (["digits", "--address", "fed.org:1", "--nodes", "a=0-1", "b"], "--nodes b: a node without clients"),
        (["digits", "--address", "fed.org:1", "--nodes", "a=0-1", "b=1"], "client 1 is at nodes 'a' and 'b'"),
        (["digits", "--address", "fed.org:1", "--nodes", "a=0-2"], "they have 3 clients, and the simulation has"),
        (["digits", "--address", "fed.org:1", "--nodes", "a=0-1", "--listen", "0.0.0.0:2"], "Control API"),
        (["my_digits", "--address", "fed.org:1", "--nodes", "a=0-1"], "--name=my_digits: expected up to 63 letters"),
    ],
)
def test_new_refuses_what_makes_no_federation(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refusal("new", *arguments, *CONFIGS)
    assert list(tmp_path.iterdir()) == []


def test_link_becomes_flower_s_process(tmp_path, monkeypatch, capsys):
    server, started = federation_in(tmp_path / "f"), []
    monkeypatch.setattr("os.execve", lambda *given: started.append(given))
    monkeypatch.setattr(flower_commands, "is_taken", lambda host, port: False)
    main(["federation", "link", f"{tmp_path}/f"])
    ((program, words, environment),) = started
    assert program == words[0]
    assert program.endswith("/flower-superlink")
    assert environment["FLWR_HOME"] == str(server.link)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    said = capsys.readouterr().out
    assert said.startswith(f"$ FLWR_HOME={server.link} ")
    assert "flower-superlink --ssl-ca-certfile" in said
    monkeypatch.setattr(flower_commands, "is_taken", lambda host, port: True)
    assert "127.0.0.1:8443: something listens there already" in refusal("link", tmp_path / "f")


def test_register_says_who_is_new(flower, tmp_path, capsys):
    known = flower_commands.FlowerError("Public key already in use")
    flower.answers = [known, {"node-id": "2"}]
    main(["federation", "register", f"{tmp_path}/f"])
    assert capsys.readouterr().out == "node a: was registered already\nnode b: registered\n"
    flower.answers = [{}]
    main(["federation", "register", f"{tmp_path}/f", "--remove", "--nodes", "a"])
    assert capsys.readouterr().out == "The link lets in no more: a\n"
    assert "--remove: which nodes?" in refusal("register", tmp_path / "f", "--remove")


def test_a_run_is_followed_unless_it_is_detached(flower, tmp_path, capsys):
    flower.answers = [{"runs": []}, {"run-id": "7"}]
    main(["federation", "run", f"{tmp_path}/f", "--detach", "--trainer.max_steps=2"])
    assert capsys.readouterr().out == "run 7\n"
    assert '"[\\"--trainer.max_steps=2\\"]"' in (flower.server.link / "run.toml").read_text()
    assert flower.followed == []
    flower.answers = [{"runs": []}, {"run-id": "8"}, {"runs": [run_of("8", "finished:completed")]}]
    main(["federation", "run", f"{tmp_path}/f"])
    assert capsys.readouterr().out == "run 8\nrun 8: finished:completed, 3 s\n"
    assert flower.followed == ["8"]


def test_a_run_that_failed_ends_the_command_with_an_error(flower, tmp_path):
    flower.answers = [{"runs": [run_of("8")]}, {"runs": [run_of("8", "finished:failed")]}]
    said = refusal("watch", tmp_path / "f")
    assert "Run 8 did not get to its end" in said
    assert "There is no checkpoint yet: mend it, and run it anew." in said
    flower.server.runs.mkdir(exist_ok=True)
    (flower.server.runs / "last.ckpt").write_text("")
    flower.answers = [{"runs": [run_of("8")]}, {"runs": [run_of("8", "finished:failed")]}]
    assert "--ckpt_path last goes on from the latest checkpoint" in refusal("watch", tmp_path / "f")


def test_leaving_a_log_leaves_the_run(flower, tmp_path, monkeypatch, capsys):
    def interrupt(self, number):
        raise KeyboardInterrupt

    flower.answers = [{"runs": [run_of("8")]}]
    monkeypatch.setattr(runs.Runs, "follow", interrupt)
    assert refusal("watch", tmp_path / "f") == "130"
    assert "The run goes on." in capsys.readouterr().out
    assert flower.asked == [("ls",)]


def test_stop_and_status_say_how_things_are(flower, tmp_path, capsys):
    flower.answers = [{"runs": [run_of("8")]}, {}, {"runs": [run_of("8", "finished:stopped")]}]
    main(["federation", "stop", f"{tmp_path}/f"])
    assert capsys.readouterr().out == "run 8: finished:stopped, 3 s\n"
    flower.answers = [NODES, {"runs": []}]
    main(["federation", "status", f"{tmp_path}/f"])
    assert "node a: online, clients 0, 1\n" in capsys.readouterr().out


def test_renew_says_what_is_to_be_done(flower, tmp_path, capsys):
    before = flower.server.certificate.read_bytes()
    main(["federation", "renew", f"{tmp_path}/f", "--hosts", "192.0.2.9"])
    assert flower.server.certificate.read_bytes() != before
    said = capsys.readouterr().out
    assert "for 127.0.0.1, localhost, ::1, 192.0.2.9; certificate until " in said
    assert said.endswith("Start link and proxy again to use it.\n")


def test_a_link_that_is_not_running_ends_every_command_alike(flower, tmp_path):
    flower.running = False
    for command in ("register", "run", "watch", "stop", "status"):
        assert "The link is not running" in refusal(command, tmp_path / "f")


def test_a_folder_without_a_federation_is_named(tmp_path):
    assert "no federation is there" in refusal("status", tmp_path)

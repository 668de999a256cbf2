import json

import pytest

from attsvm.cli import app
from attsvm.cli.application import run_app


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def record(self):
        return json.loads(self.out)


@pytest.fixture
def attsvm_command(capsys, monkeypatch, tmp_path):
    """Run the command in a folder of its own, as the shell would, but in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_app(app, [str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(ended.value.code, captured.out, captured.err)

    return run

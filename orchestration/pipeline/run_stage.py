"""`python -m orchestration.pipeline.run_stage train@hce`: what every command in `dvc.yaml` calls."""

from __future__ import annotations

import sys

from orchestration import quiet  # noqa: F401  telemetry is switched off before anything else is imported
from orchestration.pipeline.parent_watch import die_with_ancestors


def main(arguments: list[str]) -> int:
    """Run the stage that the only argument names; returns the exit code."""
    from model_code.errors import FreshetError
    from orchestration import parameters
    from orchestration.pipeline import runner, stages
    from orchestration.project import Project

    die_with_ancestors()
    try:
        project = Project.find()
        settings = parameters.load(project.params_file)
        (stage,) = stages.find(arguments[0], settings.retrievers)
        finished = runner.run_stage(stage, project)
    except FreshetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"  {stage.address}: done in {finished.ended - finished.started:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The module that Dagster loads: the definitions of the project around the working directory."""

from __future__ import annotations

from model_code.project import Project
from orchestration.project_definitions import definitions

defs = definitions(Project.find())

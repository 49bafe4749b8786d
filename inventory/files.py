"""Files as every kit makes them: rendered from templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2


class Templates:
    """Templates of a package's folder. filters: those that they may use, by name."""

    def __init__(self, package: str, **filters: Callable[..., str]) -> None:
        self._package, self.filters = package, filters

    def render(self, name: str, words: Mapping[str, object]) -> str:
        """Fill in a template. A word that it needs and is not given is an error."""
        return self._environment.get_template(name).render(words)

    @cached_property
    def _environment(self) -> jinja2.Environment:
        import jinja2  # commands that render nothing need not wait for it

        environment = jinja2.Environment(
            loader=jinja2.PackageLoader(self._package),
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters.update(self.filters)
        return environment

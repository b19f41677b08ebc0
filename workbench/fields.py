"""Values whose fields are given by name: what is misspelt is answered with the fields that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from workbench.nearest import nearest

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _ByName(ModelMetaclass):
    """How the class itself is called; what pydantic reads from files and nested values does not come this way."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        fields = list(cls.model_fields)  # type: ignore[attr-defined]
        if args:
            raise TypeError(f"{cls.__name__} takes its fields by name, as {fields[0]}=...; it has {', '.join(fields)}")
        if unknown := [field for field in values if field not in fields]:
            raise TypeError(f"{cls.__name__} has no field {unknown[0]!r}. {nearest(unknown[0], fields)}")
        return super().__call__(**values)


class Named(BaseModel, metaclass=_ByName):
    """A pydantic model that raises TypeError, with the fields there are, for a field given by place or unknown, as a
    function does for its keywords."""

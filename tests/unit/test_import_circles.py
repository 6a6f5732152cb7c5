"""No module stands in a circle of imports, those for type checkers included."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def test_no_module_imports_what_imports_it() -> None:
    graph = grimp.build_graph("penstock", "common", "services", exclude_type_checking_imports=False)
    packages = {each for each in graph.modules if graph.find_children(each)}
    imports = {each: graph.find_modules_directly_imported_by(each) - packages for each in graph.modules - packages}
    assert len(imports) > 500
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))

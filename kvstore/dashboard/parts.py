"""Parts: what the browser draws (static/), as NiceGUI elements. Each has one property, `data`: JSON that was made once
for all viewers, and that is sent when it differs from what was sent last."""

from importlib import import_module

from nicegui import ui

import_module("nicegui.elements.echart")  # makes Apache ECharts known to the page as "nicegui-echart"


class Part(ui.element):
    """Of the page."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = ""

    def show(self, data: str) -> None:
        """Draw that; "" = nothing at all."""
        if data != self._shown:
            self._shown = data
            self.props["data"] = data
            self.set_visibility(bool(data))


class Heading(ui.element):
    """Of a panel."""

    def __init__(self, text: str) -> None:
        super().__init__("h2")
        self._text = text


class TopBar(Part, component="static/top_bar.js"):
    """Emits "window" with its name, "act" with "clear" or "drain", and "look" with whether the page can be seen."""


class Figures(Part, component="static/figures.js"):
    """The figures on top."""


class TimeChart(Part, component="static/time_chart.js", dependencies=["static/plot.js"]):
    """What was when."""


class SizeChart(Part, component="static/size_chart.js", dependencies=["static/plot.js"]):
    """What would be with another size."""


class Bars(Part, component="static/bars.js"):
    """Rows with a bar each."""


class Findings(Part, component="static/findings.js"):
    """Prompts that break off early."""


class Rows(Part, component="static/rows.js"):
    """A table. Emits "open" with a row's id, when its rows can be opened."""

    def __init__(self, *, opens: bool = False) -> None:
        super().__init__()
        self.props["opens"] = opens


class Sheet(Part, component="static/sheet.js"):
    """Emits "act" with what is to be done, and "shut". Stays in the page when it shows nothing."""

    def show(self, data: str) -> None:
        """Open it, or change what it says; "" closes it."""
        self.props["data"] = data

"""The page, and the ASGI app that serves it. Importing this imports NiceGUI, of which a process has one, so that it has
one dashboard."""

# pyright: reportUnknownMemberType=false
# NiceGUI's handlers are Callables without parameters.

import html
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from nicegui import Client, events, ui

from ..events.sight import Sees
from ..security.guard import Denied
from ..security.http import CALLER, RECOGNISE, ROLES
from ..security.identity import LOCAL, Identity, Role
from ..service.servicer import Servicer
from . import parts
from .actions import Actions
from .feed import Feed, Parts, Sort
from .sheets import Sheets, Target, Whose
from .timeline import WINDOWS_S

RECONNECT_S = 10.0
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -8 44 44"><path fill="#0b5c4a" d="M0 0h14v8H0z"/>'
    '<path fill="#23936f" d="M0 10h26v8H0z"/><path fill="#86c49b" d="M0 20h40v8H0z"/></svg>'
)
# Before the first paint, so that no page flashes in the other colours.
THEME = (
    "try{const t=localStorage.getItem('kvterrace-theme');"
    "if(t&&t!=='auto')document.documentElement.dataset.theme=t}catch{}"
)


class Page:
    """One that is open. A Viewer of the feed while it can be seen; ends when its viewer may not look any more."""

    def __init__(self, feed: Feed, servicer: Servicer, actions: Actions, scope: Mapping[str, Any]) -> None:
        self._feed = feed
        self._client: Client = ui.context.client
        self._recognise = scope.get(RECOGNISE, lambda: LOCAL)
        self._who: Identity = scope.get(CALLER, LOCAL)
        self._sort = Sort(self._who.tenant, feed.window())
        self._sees = servicer.sight(self._who)
        self._panels: dict[str, ui.element] = {}
        self._parts: dict[str, parts.Part] = {}
        self._build()
        peer = (scope.get("client") or ("",))[0]
        whose = Whose(self._who.tenant, self._sees, self._may_change, self._recognise, peer)
        self._sheets = Sheets(feed, servicer, actions, self._sheet.show, whose)
        self.show(feed.first(self._sort, self._sees))
        self._client.on_connect(lambda: feed.join(self))
        self._client.on_disconnect(lambda: feed.leave(self))
        self._client.on_delete(lambda: feed.leave(self))

    @property
    def sort(self) -> Sort:
        return self._sort

    @property
    def sees(self) -> Sees:
        return self._sees

    def show(self, parts: Parts) -> None:
        """What has changed reaches the browser."""
        if not self._may_look():
            self._feed.leave(self)
            self._client.open("/")  # from where it is led to sign in
            return
        for name, part in self._parts.items():
            part.show(parts[name])
            if name in self._panels:
                self._panels[name].set_visibility(bool(parts[name]))

    @property
    def _may_change(self) -> bool:
        return Role.OPERATOR in self._who.roles

    def _may_look(self) -> bool:
        found = self._recognise()
        return not isinstance(found, Denied) and found.tenant == self._who.tenant and bool(found.roles & ROLES)

    def _build(self) -> None:
        with ui.element("main").classes("kv-page"):
            self._parts["bar"] = self._bar()
            self._panel("figures", "", parts.Figures())
            self._panel("traffic", "Prompt tokens, by where they came from", parts.TimeChart(), "kv-span-8")
            self._panel("ttft", "Time to first token", parts.TimeChart(), "kv-span-4")
            self._panel("tiers", "Tiers", parts.Bars(), "kv-span-4")
            self._panel("misses", "Why tokens were computed", parts.Bars(), "kv-span-4")
            self._panel("curve", "What another size would hit", parts.SizeChart(), "kv-span-4")
            with ui.element("div").classes("kv-column kv-span-8"):
                self._panel("prefixes", "Hottest prefixes", self._table("prefix"))
                self._panel("requests", "Last requests", self._table("receipt"))
            with ui.element("div").classes("kv-column kv-span-4"):
                self._panel("findings", "Prompts that break early", parts.Findings())
                self._panel("namespaces", "Models", self._table("namespace"))
                self._panel("tenants", "Tenants", self._table("tenant"))
                self._panel("cluster", "Cluster", parts.Rows())
            self._sheet = parts.Sheet()
            self._sheet.on("act", self._act, [None])
            self._sheet.on("shut", self._shut, [])

    def _panel(self, name: str, title: str, part: parts.Part, classes: str = "") -> None:
        with ui.element("section").classes(f"kv-panel {classes}") as panel:
            panel.props["id"] = f"kv-{name}"
            if title:
                parts.Heading(title)
            part.move(panel)
        self._panels[name], self._parts[name] = panel, part

    def _table(self, kind: str) -> parts.Rows:
        async def opened(event: events.GenericEventArguments) -> None:
            await self._sheets.open(kind, event.args)

        rows = parts.Rows(opens=True)
        rows.on("open", opened, [None])
        return rows

    def _bar(self) -> parts.TopBar:
        bar = parts.TopBar()
        known = self._who is not LOCAL
        bar.props["who"] = f"{self._who.name}, {', '.join(sorted(self._who.roles & ROLES))}" if known else ""
        bar.props["mayChange"], bar.props["signsOut"] = self._may_change, known
        bar.props["whole"] = not self._who.tenant  # what tells of all tenants is for none of them
        bar.on("window", self._choose_window, [None])
        bar.on("look", self._look, [None])
        bar.on("act", self._act_on_all, [None])
        return bar

    def _choose_window(self, event: events.GenericEventArguments) -> None:
        if event.args in WINDOWS_S:
            self._sort = Sort(self._sort.tenant, event.args)
            self.show(self._feed.first(self._sort, self._sees))

    def _look(self, event: events.GenericEventArguments) -> None:
        """A page in the background costs nothing."""
        if event.args:
            self._feed.join(self)
        else:
            self._feed.leave(self)

    def _shut(self) -> None:
        self._sheets.shut()

    async def _act(self, event: events.GenericEventArguments) -> None:
        await self._sheets.act(event.args)

    async def _act_on_all(self, event: events.GenericEventArguments) -> None:
        if event.args == "clear":
            await self._sheets.ask_to_clear(Target("all"))
        elif event.args == "drain":
            await self._sheets.ask_to_drain()


def make_dashboard(feed: Feed, servicer: Servicer, actions: Actions, node: str) -> FastAPI:
    """The app that has the page at /. Its lifespan must run around its use."""

    def index(request: Request) -> None:
        ui.add_head_html(f"<style>{_style()}</style><script>{THEME}</script>")
        Page(feed, servicer, actions, request.scope)

    title = f"{node} · kvterrace" if node else "kvterrace"
    ui.page("/", title=html.escape(title))(index)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        app,
        title="kvterrace",
        favicon=ICON,
        language="en-US",
        binding_refresh_interval=None,  # nothing is bound
        reconnect_timeout=RECONNECT_S,
        message_history_length=30,
        gzip_middleware_factory=None,  # it would be the store's loop that compresses
        tailwind=False,
        show_welcome_message=False,
    )
    return app


@cache
def _style() -> str:
    return (Path(__file__).parent / "static" / "style.css").read_text()

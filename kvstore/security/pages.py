"""The pages that need nothing but themselves: to sign in, and to say why there is nothing to see."""

import html
from string import Template

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>$title · kvterrace</title><link rel="icon" href="data:,"><style>
:root{--paper:#f6f5f0;--card:#fffefb;--line:#dfddd2;--ink:#1c2420;--soft:#5c665f;--leaf:#0f6b54;--bad:#a8321f}
@media(prefers-color-scheme:dark){:root{--paper:#0f1412;--card:#171e1b;--line:#2a342f;--ink:#e8ede9;--soft:#98a59d;
--leaf:#4fc79f;--bad:#ff8e78}}
*{box-sizing:border-box}body{margin:0;min-height:100vh;display:grid;place-items:center;padding:24px;
background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{width:100%;max-width:25rem;background:var(--card);border:1px solid var(--line);border-radius:14px;padding:32px}
svg{display:block;margin-bottom:20px}h1{font-size:1.3rem;margin:0 0 8px;letter-spacing:-.01em}p{margin:0 0 16px;
color:var(--soft)}label{display:block;font-weight:600;font-size:.875rem;margin-bottom:6px}
input{width:100%;font:inherit;padding:10px 12px;border:1px solid var(--line);border-radius:8px;background:var(--paper);
color:var(--ink)}button{margin-top:16px;width:100%;font:inherit;font-weight:600;padding:10px;border:0;border-radius:8px;
background:var(--leaf);color:var(--paper);cursor:pointer}
:focus-visible{outline:2px solid var(--leaf);outline-offset:2px}
.bad{color:var(--bad)}code{font-size:.85em;background:var(--paper);padding:2px 6px;border-radius:5px;
border:1px solid var(--line);overflow-wrap:anywhere}a{color:var(--leaf)}</style></head><body><main>
<svg width="40" height="28" viewBox="0 0 40 28" aria-hidden="true"><path fill="#0f6b54" d="M0 0h14v8H0z"/>
<path fill="#2f9c79" d="M0 10h26v8H0z"/><path fill="#8cc59b" d="M0 20h40v8H0z"/></svg>
<h1>$title</h1>$body</main></body></html>
""")
_SIGN_IN = Template("""$trouble<p>This node shows what it holds only to identities with the role reader or operator.</p>
<form method="post" action="/login">
<input name="username" value="kvterrace" autocomplete="username" readonly hidden><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button></form>""")


def page(title: str, body: str) -> bytes:
    """body: HTML."""
    return _PAGE.substitute(title=html.escape(title), body=body).encode()


def sign_in_page(trouble: str = "") -> bytes:
    """trouble: why the last try failed."""
    said = f'<p class="bad" role="alert">{html.escape(trouble)}</p>' if trouble else ""
    return page("Sign in", _SIGN_IN.substitute(trouble=said))

"""The style sheet of all pages. Colours are variables, so that a dark page is a second set of values."""

CSS = """
:root{--bg:#f5f6f8;--card:#fff;--fg:#1c2430;--muted:#596474;--line:#dfe4ea;--grid:#e6eaef;--accent:#2f5fb3;
--online:#2a8a62;--failed:#c8323a;--suspect:#b67a00;--slow:#b8601f;--held:#3674b8;--full:#7d4fb5;--unknown:#77818f;
--silent:#a62f82;--u0:#cfe6da;--u1:#a9d3bf;--u2:#7dbb9d;--u3:#4f9f79;--u4:#2b7a57;--code:#eef1f5;
--detect:#3674b8;--send:#b67a00;--ack:#2a8a62;--move:#7d4fb5;--stop:#1c2430}
@media (prefers-color-scheme:dark){:root{--bg:#11151b;--card:#191f28;--fg:#e4e9f0;--muted:#a0abbb;--line:#2c3541;
--grid:#29313c;--accent:#86aef2;--online:#43bd8c;--failed:#ff6f73;--suspect:#e8b44a;--slow:#e9985e;--held:#6fabec;
--full:#b592ea;--unknown:#8a95a5;--silent:#ec82c8;--u0:#20382f;--u1:#27503f;--u2:#2f6b52;--u3:#3a8a68;--u4:#4bb086;
--code:#222a35;--detect:#6fabec;--send:#e8b44a;--ack:#43bd8c;--move:#b592ea;--stop:#e4e9f0}}
*{box-sizing:border-box}
html{scroll-behavior:smooth}
body{margin:0;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif}
header,main{max-width:1240px;margin:0 auto;padding:0 16px}
header{padding-top:22px}main{padding-bottom:40px}
a{color:var(--accent)}a:focus-visible,button:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid
var(--accent);outline-offset:2px}
nav{font-size:14px;margin-bottom:8px;display:flex;flex-wrap:wrap;gap:2px 16px}
h1{font-size:25px;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:18px;line-height:1.3;margin:0 0 4px}
h3{font-size:15px;line-height:1.4;margin:16px 0 4px}
h3 .count{color:var(--muted);font-weight:400}
.period{color:var(--muted);margin:4px 0 12px;overflow-wrap:anywhere}
.lead{font-size:17px;max-width:62em;margin:0 0 16px;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin-bottom:14px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.tile b{display:block;font-size:21px;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:13px;line-height:1.3;display:block}
.tile.bad b{color:var(--failed)}.tile.good b{color:var(--online)}.tile.warn b{color:var(--suspect)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:0 0 16px;
min-width:0}
.note,.more{color:var(--muted);margin:0 0 10px;font-size:14px;max-width:75em;overflow-wrap:anywhere}
.more{margin:8px 0 0}
ol.todo{list-style:none;margin:0;padding:0}
ol.todo li{display:grid;grid-template-columns:minmax(0,5fr) minmax(0,5fr) minmax(0,6fr);gap:2px 18px;
padding:7px 0 7px 12px;
border-bottom:1px solid var(--line);border-left:4px solid var(--unknown);overflow-wrap:anywhere;
font-size:14px;margin:3px 0}
ol.todo .where span,ol.todo .disk{color:var(--muted);font-size:13px;display:block}
ol.todo b{font-weight:600}
li.bad{border-left-color:var(--failed)!important}li.warn{border-left-color:var(--suspect)!important}
li.gone{border-left-color:var(--silent)!important}
pre{font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;background:var(--code);
border-radius:6px;padding:6px 9px;margin:2px 0;white-space:pre-wrap;overflow-wrap:anywhere}
td pre{min-width:22em}
figure{margin:0}
svg{display:block;max-width:100%;height:auto}
.narrow{display:none}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 12px;padding:0;font-size:13px;
color:var(--muted)}
.legend li{display:flex;align-items:center;gap:6px}
.legend i{width:12px;height:12px;border-radius:3px;background:currentColor;flex:none}
.racks{display:flex;flex-wrap:wrap;gap:14px 18px;margin-bottom:8px}
.racks figcaption{font-size:12px;color:var(--muted);max-width:100%;overflow-wrap:anywhere;
line-height:1.3;margin-bottom:3px}
.racks figure{max-width:100%;min-width:0}
.racks a rect{fill:transparent}.racks a:hover rect,.racks a:focus rect{stroke:var(--fg);stroke-width:1}
.racks a text{fill:var(--accent)}
details{margin-top:10px;font-size:14px}
summary{cursor:pointer;color:var(--muted);font-size:13.5px}
.scroll{overflow:auto;margin-top:8px;max-height:520px}
table{border-collapse:collapse;min-width:100%;font-size:13.5px}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:top}
td.w,th.w{white-space:normal;min-width:18em;overflow-wrap:anywhere}
th{color:var(--muted);font-weight:600;position:sticky;top:0;background:var(--card)}
th button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer;text-align:inherit}
th button::after{content:" ↕";opacity:.45}th[aria-sort=ascending] button::after{content:" ↑";opacity:1}
th[aria-sort=descending] button::after{content:" ↓";opacity:1}
.n{text-align:right;font-variant-numeric:tabular-nums}
svg text{font-size:12px;fill:var(--fg)}
svg .c{pointer-events:none}svg .b{font-weight:600}svg .m{fill:var(--muted)}svg .t11{font-size:11px}
svg .grid{stroke:var(--grid)}svg .whisker{stroke:var(--accent);stroke-width:2}svg .dot{fill:var(--accent)}
svg .line{fill:none;stroke:var(--accent);stroke-width:1.5}svg .bar{fill:var(--accent)}svg .outline{fill:var(--grid)}
svg .band{fill-opacity:.5}svg .ci{fill:var(--accent);fill-opacity:.16}
svg .mark{stroke:var(--card);stroke-width:1.2;paint-order:stroke}
.u0{fill:var(--u0);color:var(--u0)}.u1{fill:var(--u1);color:var(--u1)}.u2{fill:var(--u2);color:var(--u2)}
.u3{fill:var(--u3);color:var(--u3)}.u4{fill:var(--u4);color:var(--u4)}
.s-online{fill:var(--online);color:var(--online)}.s-failed{fill:var(--failed);color:var(--failed)}
.s-suspect{fill:var(--suspect);color:var(--suspect)}.s-slow{fill:var(--slow);color:var(--slow)}
.s-held{fill:var(--held);color:var(--held)}.s-full{fill:var(--full);color:var(--full)}
.s-unknown{fill:var(--unknown);color:var(--unknown)}.s-stopped{fill:var(--stop);color:var(--stop)}
.s-unreadable{fill:var(--failed);color:var(--failed)}.s-silent{fill:var(--silent);color:var(--silent)}
.s-agent{fill:var(--unknown)}
.l-detect{fill:var(--detect);color:var(--detect)}.l-send{fill:var(--send);color:var(--send)}
.l-ack{fill:var(--ack);color:var(--ack)}.l-move{fill:var(--move);color:var(--move)}
.l-giveup{fill:var(--failed);color:var(--failed)}
.e-start{fill:var(--accent)}.e-good{fill:var(--online)}.e-warn{fill:var(--suspect)}.e-bad{fill:var(--failed)}
.e-move{fill:var(--move)}.e-stop{fill:var(--stop)}.e-calm{fill:var(--muted)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:0 28px}.pair>div{min-width:0}
@media (min-width:1900px){header,main{max-width:1720px}.racks{gap:16px 22px}}
@media (min-width:3000px){header,main{max-width:2600px}}
@media (max-width:860px){ol.todo li{grid-template-columns:minmax(0,1fr)}}
@media (max-width:760px){.wide{display:none}.narrow{display:block}}
@media (max-width:480px){header,main{padding-left:10px;padding-right:10px}section{padding:12px}.lead{font-size:16px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
@media print{body{background:#fff}section,.tile{break-inside:avoid}.scroll{max-height:none}}
""".strip().replace("\n", "")

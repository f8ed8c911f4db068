"""The style sheet of the fleet page. Colours are variables, so that a dark page is a second set of values."""

CSS = """
:root{--bg:#f6f7f9;--card:#fff;--fg:#1c2430;--muted:#5d6878;--line:#dfe4ea;--grid:#e6eaef;--accent:#3566b8;
--online:#2a9468;--failed:#d13a3f;--suspect:#d99a14;--slow:#c9732b;--held:#3f7fc4;--full:#8a5bc2;--unknown:#8b95a3;--silent:#b0338a;
--detect:#3f7fc4;--send:#d99a14;--ack:#2a9468;--move:#8a5bc2;--stop:#1c2430}
@media (prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2029;--fg:#e4e9f0;--muted:#98a4b5;--line:#2c3541;
--grid:#29313c;--accent:#79a5ee;--online:#3fb987;--failed:#f0666a;--suspect:#e8b44a;--slow:#e5935a;--held:#6aa6ea;
--full:#b08ae6;--unknown:#7d8896;--silent:#e479c0;--detect:#6aa6ea;--send:#e8b44a;--ack:#3fb987;--move:#b08ae6;--stop:#e4e9f0}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif}
header,main,footer{max-width:1160px;margin:0 auto;padding:0 16px}
header{padding-top:28px}
h1{font-size:26px;line-height:1.2;margin:0}
h2{font-size:17px;line-height:1.3;margin:0 0 4px}
.period{color:var(--muted);margin:4px 0 14px}
.lead{font-size:17px;max-width:62em;margin:0 0 18px}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;margin-bottom:16px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:22px;line-height:1.25;font-variant-numeric:tabular-nums;white-space:nowrap}
.tile span{color:var(--muted);font-size:13px;line-height:1.3;display:block}
.tile.bad b{color:var(--failed)}.tile.good b{color:var(--online)}.tile.warn b{color:var(--suspect)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:0 0 16px;
min-width:0}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:16px}
.note{color:var(--muted);margin:0 0 12px;font-size:14px;max-width:70em}
figure{margin:0}
svg{display:block;max-width:100%;height:auto}
.narrow{display:none}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 12px;padding:0;font-size:13px;
color:var(--muted)}
.legend li{display:flex;align-items:center;gap:6px}
.legend i{width:12px;height:12px;border-radius:3px;background:currentColor}
.names{columns:14em;margin:8px 0 0;overflow-wrap:anywhere}.names span{display:block}
summary.title{color:var(--fg);font-weight:600;font-size:14px}.scroll.whole{max-height:none}
details{margin-top:12px;font-size:13px}
summary{cursor:pointer;color:var(--muted)}
.scroll{overflow-x:auto;margin-top:8px;max-height:420px;overflow-y:auto}
table{border-collapse:collapse;min-width:100%}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap;
overflow-wrap:anywhere;vertical-align:top}
td:last-child,.below{white-space:normal;min-width:16em}
td.n:last-child{min-width:0}
.first td{border-bottom:0}.below{color:var(--muted);padding-top:0}
th{color:var(--muted);font-weight:600;position:sticky;top:0;background:var(--card)}
.n{text-align:right;font-variant-numeric:tabular-nums}
footer{color:var(--muted);font-size:13px;padding-top:4px;padding-bottom:32px}
svg text{font-size:12px;fill:var(--fg)}
svg .c{pointer-events:none}svg .b{font-weight:600}svg .m{fill:var(--muted)}svg .t11{font-size:11px}
svg .grid{stroke:var(--grid)}
svg .bar{fill:var(--accent)}
svg .outline{fill:var(--grid)}
svg .tint{fill-opacity:.16}
svg .band{fill-opacity:.5}
svg .mark{stroke:var(--card);stroke-width:1.2;paint-order:stroke}
.s-online{fill:var(--online);color:var(--online)}.s-failed{fill:var(--failed);color:var(--failed)}
.s-suspect{fill:var(--suspect);color:var(--suspect)}.s-slow{fill:var(--slow);color:var(--slow)}
.s-held{fill:var(--held);color:var(--held)}.s-full{fill:var(--full);color:var(--full)}
.s-unknown{fill:var(--unknown);color:var(--unknown)}.s-stopped{fill:var(--unknown);color:var(--unknown)}
.s-unreadable{fill:var(--failed);color:var(--failed)}.s-silent{fill:var(--silent);color:var(--silent)}
svg .s-agent{fill:var(--unknown);fill-opacity:.35}
.l-detect{fill:var(--detect);color:var(--detect)}.l-send{fill:var(--send);color:var(--send)}
.l-ack{fill:var(--ack);color:var(--ack)}.l-move{fill:var(--move);color:var(--move)}
.l-giveup{fill:var(--failed);color:var(--failed)}
.e-start{fill:var(--accent)}.e-good{fill:var(--online)}.e-warn{fill:var(--suspect)}.e-bad{fill:var(--failed)}
.e-move{fill:var(--move)}.e-stop{fill:var(--stop)}.e-calm{fill:var(--muted)}
@media (max-width:1000px){.pair{grid-template-columns:1fr;gap:0}}
@media (max-width:760px){.wide{display:none}.narrow{display:block}}
@media (max-width:760px){.tiles{grid-template-columns:repeat(2,1fr)}}
@media (max-width:480px){.tiles{grid-template-columns:repeat(2,1fr)}header,main,footer{padding-left:10px;
padding-right:10px}section{padding:14px}.lead{font-size:16px}}
@media print{body{background:#fff}section,.tile{break-inside:avoid}}
""".strip().replace("\n", "")

"""The picture of a terminal has what was said, in its columns."""

import xml.etree.ElementTree as ET

from scripts.story.picture import draw

SVG = "{http://www.w3.org/2000/svg}"


def test_every_line_is_there_with_its_columns_and_states_have_colours() -> None:
    lines = ["DEGRADED: 1 of 3 <directories>", "", "failed  /mnt/d3", "a line that is longer than failed ones"]
    picture = ET.fromstring(draw(lines))
    texts = picture.findall(f"{SVG}text")
    assert ["".join(text.itertext()) for text in texts] == [line for line in lines if line]
    widths = [float(text.attrib["textLength"]) / len("".join(text.itertext())) for text in texts]
    assert max(widths) - min(widths) < 0.1
    assert [span.text for span in picture.iter(f"{SVG}tspan")] == ["DEGRADED", "failed"]
    assert float(picture.attrib["viewBox"].split()[2]) >= 40 * max(widths)

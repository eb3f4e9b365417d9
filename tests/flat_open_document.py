"""A text, a workbook and a presentation as flat OpenDocument, which LibreOffice converts.

Each word of `*_WORDS` is shown and must be found in a converted file, if the file still has it.
Each word of `*_HIDDEN` is deleted or hidden, and must not be found.
"""

from __future__ import annotations

_OPEN_DOCUMENT = "urn:oasis:names:tc:opendocument:xmlns"
_NAMESPACES = {
    "office": f"{_OPEN_DOCUMENT}:office:1.0",
    "style": f"{_OPEN_DOCUMENT}:style:1.0",
    "text": f"{_OPEN_DOCUMENT}:text:1.0",
    "table": f"{_OPEN_DOCUMENT}:table:1.0",
    "draw": f"{_OPEN_DOCUMENT}:drawing:1.0",
    "fo": f"{_OPEN_DOCUMENT}:xsl-fo-compatible:1.0",
    "svg": f"{_OPEN_DOCUMENT}:svg-compatible:1.0",
    "presentation": f"{_OPEN_DOCUMENT}:presentation:1.0",
    "of": f"{_OPEN_DOCUMENT}:of:1.2",
    "xlink": "http://www.w3.org/1999/xlink",
    "dc": "http://purl.org/dc/elements/1.1/",
}
_CHANGE = "<office:change-info><dc:creator>Ida</dc:creator><dc:date>2024-01-02T10:00:00</dc:date>"
_AUTHOR = "<dc:creator>Ida</dc:creator><dc:date>2024-01-02T10:00:00</dc:date>"
_RECTANGLE = (
    '<draw:enhanced-geometry draw:type="rectangle" svg:viewBox="0 0 9 9" '
    'draw:enhanced-path="M 0 0 L 9 0 9 9 0 9 0 0 Z N"/>'
)


def _document(kind: str, title: str, styles: str, masters: str, body: str) -> str:
    """Return a flat OpenDocument file."""
    namespaces = " ".join(f'xmlns:{name}="{uri}"' for name, uri in _NAMESPACES.items())
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document {namespaces} '
        f'office:version="1.3" office:mimetype="application/vnd.oasis.opendocument.{kind}">'
        f"<office:meta><dc:title>{title}</dc:title></office:meta>"
        f"<office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:master-styles>{masters}</office:master-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document>"
    )


TEXT = _document(
    "text",
    "Sluice handbook",
    """<style:page-layout style:name="pm"><style:page-layout-properties fo:page-width="21cm"
  fo:page-height="29.7cm" fo:margin="2cm"/><style:header-style><style:header-footer-properties
  fo:min-height="1cm"/></style:header-style></style:page-layout>
<style:style style:name="B" style:family="text"><style:text-properties fo:font-weight="bold"/>
</style:style>
<style:style style:name="H" style:family="text"><style:text-properties text:display="none"/>
</style:style>
<style:style style:name="F" style:family="graphic"><style:graphic-properties style:wrap="none"/>
</style:style>""",
    """<style:master-page style:name="Standard" style:page-layout-name="pm"><style:header>
<text:p>Kopfzeile quartz</text:p></style:header><style:footer><text:p>Fußzeile granite</text:p>
</style:footer></style:master-page>""",
    f"""<text:tracked-changes><text:changed-region text:id="c1"><text:deletion>{_CHANGE}
</office:change-info><text:p>basalt<text:s/></text:p></text:deletion></text:changed-region>
<text:changed-region text:id="c2"><text:insertion>{_CHANGE}</office:change-info></text:insertion>
</text:changed-region></text:tracked-changes>
<text:h text:outline-level="1">Keepers of the gate</text:h>
<text:p>Open the <text:change text:change-id="c1"/><text:change-start text:change-id="c2"/>marble
<text:change-end text:change-id="c2"/>door. Hoch<text:span text:style-name="B">wasser</text:span>
rises, <text:span text:style-name="H">flint</text:span> falls.</text:p>
<text:p>Überschwemmung größer crème brûlée наводнение плотины φράγμα ποταμού 水門の手引き السد
العالي żółw erdő 🐟</text:p>
<text:p>tabbed<text:tab/>stop broken<text:line-break/>line {{curly}} back\\slash soft&#xAD;ened
5&#xA0;€</text:p>
<text:list><text:list-item><text:p>first ash</text:p><text:list><text:list-item><text:p>nested
birch</text:p></text:list-item></text:list></text:list-item></text:list>
<table:table table:name="T"><table:table-column table:number-columns-repeated="3"/>
<table:table-row><table:table-cell table:number-columns-spanned="2"><text:p>spanning wide</text:p>
</table:table-cell><table:covered-table-cell/><table:table-cell table:number-rows-spanned="2">
<text:p>spanning deep</text:p></table:table-cell></table:table-row>
<table:table-row><table:table-cell><text:p>leftmost</text:p></table:table-cell><table:table-cell>
<text:p>middle</text:p><table:table table:name="I"><table:table-column/><table:table-row>
<table:table-cell><text:p>innermost</text:p></table:table-cell></table:table-row></table:table>
<text:p/></table:table-cell><table:covered-table-cell/></table:table-row></table:table>
<text:p>A note<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation>
<text:note-body><text:p>opal explains</text:p></text:note-body></text:note> and an end<text:note
  text:note-class="endnote"><text:note-citation>i</text:note-citation><text:note-body><text:p>jade
closes</text:p></text:note-body></text:note>. Asked<office:annotation>{_AUTHOR}<text:p>ruby remarks
</text:p></office:annotation> here.</text:p>
<text:p><draw:frame draw:style-name="F" text:anchor-type="paragraph" svg:width="5cm"
  svg:height="2cm"><draw:text-box><text:p>pearl floats</text:p></draw:text-box></draw:frame>Beside
a box.</text:p>
<text:p><draw:custom-shape text:anchor-type="paragraph" svg:width="4cm" svg:height="2cm">
<svg:desc>crane picture</svg:desc><text:p>coral inside</text:p>{_RECTANGLE}</draw:custom-shape>
Beside a shape.</text:p>
<text:p><text:a xlink:type="simple" xlink:href="https://example.org/">amber link</text:a> over
<text:ruby><text:ruby-base>漢字</text:ruby-base><text:ruby-text>かんじ</text:ruby-text></text:ruby>
</text:p>
<text:section text:name="S"><text:p>sectional text</text:p></text:section>""",
)
TEXT_WORDS = """Sluice handbook Kopfzeile quartz Fußzeile granite Keepers of the gate Open marble
door Hochwasser rises falls Überschwemmung größer crème brûlée наводнение плотины φράγμα ποταμού
水門の手引き السد العالي żółw erdő tabbed stop broken line curly back slash softened 5 first ash
nested birch spanning wide deep leftmost middle innermost note opal explains end jade closes Asked
ruby remarks here pearl floats Beside box crane picture coral inside shape amber link over 漢字
かんじ sectional text"""
TEXT_HIDDEN = "basalt flint"

WORKBOOK = _document(
    "spreadsheet",
    "Catch book",
    """<style:style style:name="hid" style:family="table"><style:table-properties
  table:display="false"/></style:style>""",
    """<style:master-page style:name="Default" style:page-layout-name="pm"><style:header>
<text:p>slate printed</text:p></style:header></style:master-page>""",
    f"""<table:table table:name="Fänge"><table:table-column table:number-columns-repeated="4"/>
<table:table-row><table:table-cell office:value-type="string"><text:p>codfish Kabeljau</text:p>
</table:table-cell><table:table-cell office:value-type="float" office:value="2.5"><text:p>2.5
</text:p></table:table-cell><table:table-cell office:value-type="float" office:value="1234567">
<text:p>1234567</text:p></table:table-cell><table:table-cell table:formula="of:=SUM([.B1:.C1])"
  office:value-type="float" office:value="1234569.5"><text:p>1234569.5</text:p></table:table-cell>
</table:table-row>
<table:table-row><table:table-cell office:value-type="string" table:number-columns-spanned="2"
  table:number-rows-spanned="1"><text:p>merged herring</text:p></table:table-cell>
<table:covered-table-cell/></table:table-row>
<table:table-row><table:table-cell office:value-type="string"><office:annotation>{_AUTHOR}<text:p>
plaice weighed</text:p></office:annotation><text:p>upper line</text:p><text:p>lower sole</text:p>
</table:table-cell><table:table-cell table:formula="of:=&quot;tur&quot;&amp;&quot;bot&quot;"
  office:value-type="string" office:string-value="turbot"><text:p>turbot</text:p>
</table:table-cell><table:table-cell office:value-type="string"><text:p><text:a xlink:type="simple"
  xlink:href="https://example.org/">linked hake</text:a></text:p></table:table-cell>
<table:table-cell office:value-type="string"><text:p>лосось 鮭の漁 🐟</text:p></table:table-cell>
</table:table-row></table:table>
<table:table table:name="Versteckt" table:style-name="hid"><table:table-column/><table:table-row>
<table:table-cell office:value-type="string"><text:p>concealed eel</text:p></table:table-cell>
</table:table-row></table:table>
<table:table table:name="Drawn"><table:shapes><draw:frame svg:x="1cm" svg:y="3cm" svg:width="5cm"
  svg:height="2cm"><draw:text-box><text:p>boxed pike</text:p></draw:text-box></draw:frame>
</table:shapes><table:table-column/><table:table-row><table:table-cell office:value-type="string">
<text:p>last carp</text:p></table:table-cell></table:table-row></table:table>""",
)
WORKBOOK_WORDS = """Catch book slate printed Fänge codfish Kabeljau 2 5 1234567 1234569 merged
herring plaice weighed upper line lower sole turbot linked hake лосось 鮭の漁 Versteckt concealed
eel Drawn boxed pike last carp"""

_PLACEHOLDER = 'svg:x="1cm" svg:width="20cm" svg:height="3cm"'
PRESENTATION = _document(
    "presentation",
    "Tide talk",
    """<style:page-layout style:name="pm"><style:page-layout-properties fo:page-width="28cm"
  fo:page-height="21cm"/></style:page-layout>
<style:style style:name="dp" style:family="drawing-page"><style:drawing-page-properties
  presentation:display-footer="true"/></style:style>
<style:style style:name="dh" style:family="drawing-page"><style:drawing-page-properties
  presentation:visibility="hidden"/></style:style>""",
    f"""<style:master-page style:name="M" style:page-layout-name="pm" draw:style-name="dp">
<draw:frame presentation:style-name="M-title" {_PLACEHOLDER} svg:y="1cm"
  presentation:class="title" presentation:placeholder="true"><draw:text-box/></draw:frame>
<draw:frame presentation:style-name="M-outline1" {_PLACEHOLDER} svg:y="5cm"
  presentation:class="outline" presentation:placeholder="true"><draw:text-box/></draw:frame>
<draw:frame {_PLACEHOLDER} svg:y="18cm" presentation:class="footer"><draw:text-box><text:p>
<presentation:footer/></text:p></draw:text-box></draw:frame></style:master-page>""",
    f"""<presentation:footer-decl presentation:name="f1">footer kelp</presentation:footer-decl>
<draw:page draw:name="p1" draw:master-page-name="M" draw:style-name="dp"
  presentation:use-footer-name="f1">
<draw:frame presentation:style-name="M-title" {_PLACEHOLDER} svg:y="1cm"
  presentation:class="title"><draw:text-box><text:p>Spring <text:span>tides</text:span></text:p>
</draw:text-box></draw:frame>
<draw:frame presentation:style-name="M-outline1" {_PLACEHOLDER} svg:y="5cm"
  presentation:class="outline"><draw:text-box><text:list><text:list-item><text:p>lunar bullet
</text:p><text:list><text:list-item><text:p>solar dash</text:p></text:list-item></text:list>
</text:list-item></text:list></draw:text-box></draw:frame>
<draw:g><draw:frame {_PLACEHOLDER} svg:y="12cm"><draw:text-box><text:p>grouped ebb</text:p>
</draw:text-box></draw:frame><draw:custom-shape svg:x="8cm" svg:y="12cm" svg:width="4cm"
  svg:height="2cm"><text:p>shaped flow</text:p>{_RECTANGLE}</draw:custom-shape></draw:g>
<draw:frame {_PLACEHOLDER} svg:y="15cm"><table:table><table:table-column/><table:table-column/>
<table:table-row><table:table-cell table:number-columns-spanned="2"><text:p>merged moon</text:p>
</table:table-cell><table:covered-table-cell/></table:table-row><table:table-row>
<table:table-cell><text:p>leftmost</text:p></table:table-cell><table:table-cell><text:p>прилив
</text:p></table:table-cell></table:table-row></table:table></draw:frame>
<office:annotation svg:x="2cm" svg:y="2cm">{_AUTHOR}<text:p>checked twice</text:p>
</office:annotation>
<presentation:notes><draw:page-thumbnail presentation:class="page" {_PLACEHOLDER} svg:y="1cm"/>
<draw:frame presentation:style-name="M-notes" presentation:class="notes" {_PLACEHOLDER}
  svg:y="10cm"><draw:text-box><text:p>speak slowly</text:p></draw:text-box></draw:frame>
</presentation:notes></draw:page>
<draw:page draw:name="p2" draw:master-page-name="M" draw:style-name="dh"><draw:frame {_PLACEHOLDER}
  svg:y="1cm"><draw:text-box><text:p>concealed neap 満潮の時刻</text:p></draw:text-box></draw:frame>
</draw:page>
<draw:page draw:name="p3" draw:master-page-name="M" draw:style-name="dp"><draw:frame {_PLACEHOLDER}
  svg:y="1cm"><draw:text-box><text:p>last harbour</text:p></draw:text-box></draw:frame>
</draw:page>""",
)
PRESENTATION_WORDS = """Tide talk footer kelp Spring tides lunar bullet solar dash grouped ebb
shaped flow merged moon leftmost прилив checked twice speak slowly concealed neap 満潮の時刻 last
harbour"""

"""English and Chinese: which is in use, and how it is changed while the window is open."""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QTranslator
from PySide6.QtWidgets import QApplication

from app.paths import assets_dir

CHINESE_FONTS = ("Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "Microsoft YaHei")

LanguageName = Literal["en", "zh"]


class Language:
    """The texts of the window. English is the source and needs no file."""

    def __init__(self) -> None:
        self.name: LanguageName = "en"
        self._translators: list[QTranslator] = []

    def use(self, wanted: str) -> None:
        """`en`, `zh`, or "": the system's where there is a translation. Every widget gets a LanguageChange event."""
        name = wanted or ("zh" if QLocale.system().language() is QLocale.Language.Chinese else "en")
        for translator in self._translators:
            QCoreApplication.removeTranslator(translator)
        self.name, self._translators = "en", []
        if name == "zh":
            self._load("qtbase_zh_CN", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath))
            if self._load("zh", str(assets_dir() / "i18n")):
                self.name = "zh"
        _prefer_chinese(self.name == "zh")

    def _load(self, name: str, folder: str) -> bool:
        """Qt's own texts (the buttons of its dialogs) are a file of their own, which a package may leave out."""
        translator = QTranslator()
        if not translator.load(name, folder):
            return False
        self._translators.append(translator)
        return QCoreApplication.installTranslator(translator)


def _prefer_chinese(is_preferred: bool) -> None:
    """The face that texts are measured by: Latin ones are lower, and Chinese would be cut off beneath."""
    font = QApplication.font()
    others = [family for family in font.families() if family not in CHINESE_FONTS]
    families = [*CHINESE_FONTS, *others] if is_preferred else [*others, *CHINESE_FONTS]
    if families != font.families():
        font.setFamilies(families)
        QApplication.setFont(font)

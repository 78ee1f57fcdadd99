"""Only what pyproject.toml cannot say: the packages are found by name, and assets/ is shipped inside `app`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["app", "app.*", "audio", "audio.*", "gpu", "gpu.*"]), "app.assets"],
    package_dir={"app.assets": "assets"},
    package_data={"app.assets": ["**/*"], "gpu": ["cuda/*.cu", "cuda/*.cuh", "cuda/prebuilt/*.fatbin"]},
)

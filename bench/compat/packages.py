"""Debian packages: what the suites need, binaries and sources.

Sources come from the same archive as the installed packages. The lists for them are kept in the
work folder, so the machine's own configuration is not touched.
"""

import os
import pathlib
import subprocess


class Missing(Exception):
    """Something that a suite needs cannot be had here; the text says what."""


def installed_version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}\t${Version}", package],
                          capture_output=True, text=True)
    status, _, version = done.stdout.partition("\t")
    return version if status == "install ok installed" else None


def need(*packages):
    """Sees to it that packages are installed, installs them as root."""
    missing = [package for package in packages if not installed_version(package)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise Missing(f"not installed: {' '.join(missing)}; run as root, or install them")
    print(f"compat: installing {' '.join(missing)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"],
                    ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")


def archive_lines():
    """The machine's `deb` sources of Debian itself as `deb-src` lines."""
    done = subprocess.run(["apt-get", "indextargets", "--format",
                           "$(REPO_URI) $(RELEASE) $(COMPONENT) $(CREATED_BY)"],
                          capture_output=True, text=True)
    lines = set()
    for line in done.stdout.splitlines():
        uri, release, component, kind = (line.split(" ") + ["", "", "", ""])[:4]
        if kind == "Packages" and component == "main" and "debian" in uri:
            lines.add(f"deb-src {uri} {release} main")
    return sorted(lines)


class Sources:
    """Source packages, unpacked below the work folder."""

    def __init__(self, work):
        self.work = pathlib.Path(work) / "sources"
        self.ready = False

    def _apt(self, *words, cwd=None):
        config = self.work / "apt.conf"
        return subprocess.run(["apt-get", *words], cwd=cwd or self.work, capture_output=True,
                              text=True, env=os.environ | {"APT_CONFIG": str(config)})

    def _lists(self):
        if self.ready:
            return
        need("dpkg-dev")
        (self.work / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (self.work / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        (self.work / "sources.list").write_text("\n".join(archive_lines()) + "\n")
        (self.work / "apt.conf").write_text(
            f'Dir::Etc::sourcelist "{self.work}/sources.list";\n'
            'Dir::Etc::sourceparts "/dev/null";\n'
            f'Dir::State::lists "{self.work}/lists";\n'
            f'Dir::Cache "{self.work}/cache";\n'
            'APT::Sandbox::User "root";\n')
        done = self._apt("update", "-qq")
        if done.returncode != 0:
            raise Missing(f"no lists of source packages: {done.stderr.strip()[-300:]}")
        self.ready = True

    def unpacked(self, source, version):
        """The folder of a source package, of this very version."""
        target = self.work / f"{source}-{version.replace(':', '_')}"
        if target.exists():
            return target
        self._lists()
        download = self.work / "download" / source
        download.mkdir(parents=True, exist_ok=True)
        done = self._apt("source", "-qq", "--download-only", f"{source}={version}", cwd=download)
        if done.returncode != 0:
            raise Missing(f"no source package {source} {version}: {done.stderr.strip()[-300:]}")
        plain = version.split(":", 1)[-1]
        partial = target.with_name(target.name + ".partial")
        subprocess.run(["rm", "-rf", partial], check=True)
        subprocess.run(["dpkg-source", "--no-check", "-x", f"{source}_{plain}.dsc", partial],
                       cwd=download, check=True, capture_output=True)
        partial.rename(target)
        return target

    def has(self, source):
        """Whether the archive has a source package at all."""
        self._lists()
        done = self._apt("source", "-qq", "--print-uris", source)
        return done.returncode == 0

    def downloaded(self, package):
        """A binary package as a file, not installed."""
        found = sorted(self.work.glob(f"{package}_*.deb"))
        if found:
            return found[-1]
        self.work.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["apt-get", "download", "-qq", package], cwd=self.work,
                              capture_output=True, text=True)
        found = sorted(self.work.glob(f"{package}_*.deb"))
        if done.returncode != 0 or not found:
            raise Missing(f"no package {package}: {done.stderr.strip()[-300:]}")
        return found[-1]

# What an installation is made of. Sourced by packaging/install and packaging/stage, which set $venv, $python, $prefix,
# $destdir, $etc, $var and $run.
# shellcheck shell=sh
# shellcheck disable=SC2154 # they do

if [ ! -x "$venv/bin/pip" ]; then
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        echo "warmstart: $python cannot make a venv here; install python3-venv, then try again" >&2
        exit 1
    fi
    "$python" -m venv "$venv"
fi
interpreter=$("$venv/bin/python" -c 'import os, sys; print(os.path.realpath(sys.executable))')

fill() { # SOURCE TARGET HOOK
    sed -e "s|@PYTHON@|$interpreter|g" -e "s|@PREFIX@|$prefix|g" -e "s|@ETC@|$etc|g" -e "s|@VAR@|$var|g" \
        -e "s|@RUN@|$run|g" -e "s|@HOOK@|$3|g" "packaging/$1" >"$2.new"
    chmod 755 "$2.new"
    mv -f "$2.new" "$2"
}

fetch() { # LOCKED TARGET: the packages of packaging/requirements/LOCKED.txt, exactly these; nothing is built
    "$venv/bin/pip" install -q --no-warn-script-location --no-compile --require-hashes --only-binary=:all: \
        --target "$2" -r "packaging/requirements/$1.txt"
    rm -rf "${2:?}/bin"
    # pip's own notes; RECORD has the venv's path in it.
    find "$2" -type f \( -name RECORD -o -name INSTALLER -o -name REQUESTED \) -path '*.dist-info/*' -delete
}

release_parts() { # PYTHON CLI LIBEXEC: a release, in three directories that are not there yet
    fetch hooks "$1"
    cp -r hooks/warmstart "$1/"
    find "$1/warmstart" -depth \( -name __pycache__ -o -type f ! -name '*.py' ! -name py.typed \) -exec rm -rf {} +
    chmod -R u=rwX,go=rX "$1/warmstart"
    sed -n 's/^version = //p' setup.cfg >"$1/RELEASE"
    fetch cli "$2"
    install -d -m 755 "$3"
    fill libexec/hook.in "$3/prolog" entry.prolog
    fill libexec/hook.in "$3/epilog" entry.epilog
    fill libexec/hook.in "$3/job-container" entry.job_container
    for program in hooks/warmstart/wings/*/programs/[a-z]*.py; do
        [ -e "$program" ] || continue
        name=$(basename "$program" .py | tr _ -)
        fill libexec/hook.in "$3/$name" "$(echo "${program%.py}" | sed 's|hooks/warmstart/||; s|/|.|g')"
    done
    fill libexec/background.in "$3/background" -
    fill libexec/timers.in "$3/timers" -
    fill libexec/task-prolog.in "$3/task-prolog" -
    fill libexec/pyxis-importer.in "$3/pyxis-importer" -
    fill libexec/apptainer-environment.in "$3/apptainer-environment" -
    for program in hooks/warmstart/wings/*/libexec/*.in; do
        name=${program##*/}
        [ ! -e "$program" ] || fill "../$program" "$3/${name%.in}" -
    done
}

shared_files() { # all that is no part of a release
    share=$destdir$prefix/share/warmstart
    install -d -m 755 "$destdir$prefix/bin" "$destdir$prefix/lib/tmpfiles.d" "$share/enroot" "$share/systemd" \
        "$share/monitoring" "$share/nhc" "$share/logging"
    fill libexec/warmstart.in "$destdir$prefix/bin/warmstart" -
    fill slurm/warmstart.conf "$share/slurm.conf" -
    for part in hooks/warmstart/wings/*/slurm.conf; do
        [ ! -e "$part" ] || sed "s|@PREFIX@|$prefix|g" "$part" >>"$share/slurm.conf"
    done
    fill slurm/slurmd.conf "$share/slurmd.conf" -
    words=$("$interpreter" -BISXutf8 -c '
import sys
sys.path.insert(0, "hooks")
from warmstart import wing
print(*(word + "+" * (word in found.repeats) for found in wing.found().values() for word in found.words))')
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@WORDS@|$words|g" packaging/slurm/warmstart.lua >"$share/warmstart.lua"
    fill enroot/40-warmstart.sh.in "$share/enroot/40-warmstart.sh" -
    fill enroot/50-warmstart.fstab "$share/enroot/50-warmstart.fstab" -
    for hook in hooks/warmstart/wings/*/enroot/*.in; do
        name=${hook##*/}
        [ ! -e "$hook" ] || fill "../$hook" "$share/enroot/${name%.in}" -
    done
    for unit in packaging/systemd/* hooks/warmstart/wings/*/systemd/*; do
        [ ! -e "$unit" ] || fill "../$unit" "$share/systemd/${unit##*/}" -
    done
    fill nhc/warmstart.nhc "$share/nhc/warmstart.nhc" -
    fill tmpfiles.d/warmstart.conf "$destdir$prefix/lib/tmpfiles.d/warmstart.conf" -
    chmod 644 "$destdir$prefix/lib/tmpfiles.d/warmstart.conf" "$share/slurm.conf" "$share/slurmd.conf" \
        "$share/enroot/50-warmstart.fstab" "$share/nhc/warmstart.nhc" \
        "$share/warmstart.lua" "$share"/systemd/*
    install -m 644 packaging/monitoring/* "$share/monitoring/"
    install -m 644 packaging/logging/*.conf "$share/logging/"
    install -m 644 LICENSE policies/site.yaml policies/schema.json "$share/"
}

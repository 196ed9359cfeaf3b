# Sourced by the scripts beside it: makes a virtual environment and installs the project into it with the extras named.
# Uses PYTHON (default python3) and STREAMRF_VENV (default .venv beside this folder); needs the package index, no more.
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${STREAMRF_VENV:-$project/.venv}

use_environment() { # extras, for example "plot" or "test,check"
  local extras=$1 stamp
  if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
      { echo "Python 3.11 or later is needed; set PYTHON to one" >&2; exit 1; }
    echo "making a virtual environment in $venv"
    "${PYTHON:-python3}" -m venv "$venv"
  fi
  stamp="$venv/streamrf-$(printf %s "$extras" | tr ',' '-')-$(cksum < "$project/pyproject.toml" | cut -d' ' -f1)"
  if [ ! -e "$stamp" ]; then
    echo "installing streamrf[$extras] (a few minutes the first time)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$project[$extras]"
    touch "$stamp"
  fi
  export PATH="$venv/bin:$PATH"
}

# SPDX-License-Identifier: Apache-2.0
"""What `doctor_truth.py` tries: targets, and the packages that are judged and really loaded in each of them."""

import platform

# What PyTorch and the packages below import, and no compiled part of which is tried here.
PYTHON_OF_TORCH = ["typing-extensions", "filelock", "fsspec", "jinja2", "markupsafe", "networkx", "sympy", "mpmath",
                   "pillow", "requests", "urllib3", "idna", "certifi", "charset-normalizer", "packaging", "setuptools<80",
                   "wheel", "psutil", "python-dateutil", "six", "pytz", "tzdata", "ndindex", "py-cpuinfo", "joblib",
                   "threadpoolctl", "cycler", "fonttools", "pyparsing", "wasabi", "srsly", "catalogue", "lazy-loader", "patsy"]
NUMPY_1, NUMPY_2 = "numpy==1.26.4", "numpy==2.2.6"
# Releases of PyTorch, old C++ ABI and new, each with the NumPy of its time.
TORCHES = {"2.4.1": NUMPY_1, "2.8.0": NUMPY_2, "2.10.0": NUMPY_2}
if platform.machine() != "x86_64":  # there they are small: without CUDA's libraries
    TORCHES = {"2.1.2": NUMPY_1, "2.4.1": NUMPY_1, "2.6.0": NUMPY_2, "2.8.0": NUMPY_2, "2.10.0": NUMPY_2}
# Tried with every one of them: made for one, for several (by a stable interface, or a file for each), or for none.
WITH_TORCH = ["torchvision==0.16.2", "torchvision==0.19.1", "torchvision==0.21.0", "torchvision==0.23.0", "torchvision==0.25.0",
              "torchaudio==2.1.2", "torchaudio==2.6.0", "torchaudio==2.8.0", "tensordict==0.10.0", "bitsandbytes==0.46.1"]
# The same, where the machine is an x86_64: most projects publish for no other.
WITH_TORCH_X86_64 = ["torchtext==0.18.0", "torchcodec==0.7.0", "torchao==0.13.0", "torchrl==0.10.0", "fbgemm-gpu-cpu==1.3.0",
                     "xformers==0.0.32.post2", "vllm-flash-attn==2.6.2", "sgl-kernel==0.3.5", "dgl==2.1.0",
                     "autoawq-kernels==0.0.9", "intel-extension-for-pytorch==2.8.0", "torchdata==0.9.0", "auto-gptq==0.7.1"]
# Compiled against NumPy 1.x or 2.x: tried with both.
WITH_NUMPY = """numexpr==2.8.7 bottleneck==1.3.7 tables==3.9.2 pandas==1.5.3 scipy==1.11.4 scikit-learn==1.3.2 matplotlib==3.7.5
h5py==3.10.0 numba==0.58.1 shapely==2.0.2 pyarrow==14.0.1 statsmodels==0.14.1 scikit-image==0.22.0
opencv-python-headless==4.8.1.78 pycocotools==2.0.7 gensim==4.3.2 thinc==8.2.1 faiss-cpu==1.7.4 onnxruntime==1.16.3 onnx==1.15.0
xgboost==2.0.3 lightgbm==4.3.0 pandas==2.2.3 scipy==1.15.2 scikit-learn==1.6.1 matplotlib==3.10.1 h5py==3.13.0 contourpy==1.3.1
blis==1.2.0 faiss-cpu==1.10.0 ctranslate2==4.5.0 ml-dtypes==0.5.1 jaxlib==0.5.1 soxr==0.5.0.post1
pywavelets==1.4.1 numcodecs==0.12.1 netCDF4==1.6.5 rasterio==1.3.9 pyproj==3.6.1 cftime==1.6.3 astropy==6.0.0 biopython==1.83
spacy==3.7.2 SimpleITK==2.3.1 rdkit==2023.9.4 osqp==0.6.3 ecos==2.0.12 highspy==1.5.3 ortools==9.8.3296 tensorflow-cpu==2.15.0
onnxruntime-gpu==1.17.1 jax-cuda12-plugin==0.5.1 blosc2==2.5.1 mujoco==3.1.1 fastparquet==2024.2.0 pyreadstat==1.2.6
opencv-contrib-python==4.9.0.80 numba==0.59.1 fasttext-wheel==0.9.2 usearch==2.9.0 chroma-hnswlib==0.7.3
pyopengl-accelerate==3.1.7 catboost==1.2.2 mediapipe==0.10.9 cupy-cuda11x==13.0.0 faiss-gpu-cu12==1.10.0
ml-dtypes==0.3.2 deltalake==0.15.1 shapely==1.8.5.post1 statsmodels==0.13.5
implicit==0.7.2 dipy==1.8.0 pyscf==2.4.0 pyshtools==4.10.4 spglib==2.3.1 iminuit==2.25.2 awkward-cpp==28 boost-histogram==1.4.0
healpy==1.16.6 pyerfa==2.0.1.1 silx==2.0.0 pyFAI==2023.9.0 cartopy==0.22.0 pyogrio==0.7.2 fiona==1.9.5 tensorstore==0.1.52 vtk==9.3.0
pyopencl==2024.1 manifold3d==2.3.1 nlopt==2.7.1 rustworkx==0.14.0 clarabel==0.7.1""".split()
# Compiled against neither: modules, libraries opened by ctypes, programs, plug-ins.
PLAIN = """markupsafe==2.1.5 numpy==1.26.4 bitsandbytes==0.46.1 llvmlite==0.41.1 kiwisolver==1.4.8 safetensors==0.5.3
tokenizers==0.21.0 lxml==5.3.1 xxhash==3.5.0 orjson==3.10.15 uvloop==0.21.0 multidict==6.1.0 cffi==1.17.1 psutil==7.0.0
pyzmq==26.2.1 av==14.2.0 pillow==11.1.0 regex==2024.11.6 zstandard==0.23.0 lz4==4.4.3 mmh3==5.1.0 cvxopt==1.3.2
soundfile==0.13.1 cymem==2.0.11 grpcio==1.70.0 pymssql==2.3.2 greenlet==3.1.1 mpi4py==4.0.3 psycopg2-binary==2.9.10 duckdb==1.2.1
pikepdf==9.5.2 frozenlist==1.5.0 yarl==1.18.3 rapidfuzz==3.12.2 ujson==5.10.0 tornado==6.4.2 murmurhash==1.0.12 preshed==3.0.9
pybase64==1.4.1 simplejson==3.20.1 msgpack==1.1.0 pyyaml==6.0.2 brotli==1.1.0 cryptography==44.0.2 pydantic-core==2.31.1
rpds-py==0.23.1 watchfiles==1.0.4 scs==3.2.7 sentencepiece==0.2.0 tiktoken==0.9.0 polars==1.24.0 pynacl==1.5.0 bcrypt==4.3.0
aiohttp==3.11.13 wrapt==1.17.2 pymupdf==1.25.3 python-rapidjson==1.20 ruamel.yaml.clib==0.2.12 cupy-cuda12x==13.4.0
pysam==0.22.0 cuda-python==12.3.0 ctransformers==0.2.27 vosk==0.3.45 gevent==24.2.1 psycopg-binary==3.1.18 asyncpg==0.29.0
pyodbc==5.1.0 lmdb==1.4.1 plyvel==1.5.1 cramjam==2.8.3 h3==3.7.6 pygame==2.5.2 PyQt5==5.15.10 PySide6-Essentials==6.6.1 ray==2.9.2
grpcio-tools==1.60.0 protobuf==4.25.2 triton==3.1.0 cython==3.0.8 mypy==1.8.0 pyclipper==1.3.0.post5
dftd3==1.0.0 casadi==3.6.4 hdf5plugin==4.4.0 gmsh==4.12.2 moderngl==5.10.0 glfw==2.7.0 drjit==0.4.4 jiter==0.8.2 hf-xet==1.1.2
pycrdt==0.12.3 blake3==1.0.4 temporalio==1.5.1 nh3==0.2.20 outlines-core==0.1.26 sudachipy==0.6.8 python-calamine==0.3.1 ruff==0.9.7
zope.interface==7.2""".split()
# Wheels of another Python, of another C library, of another machine.
FOREIGN = [("torchvision==0.23.0", ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312"]),
           ("markupsafe==2.1.5", ["--python-version", "3.9", "--implementation", "cp", "--abi", "cp39"]),
           ("markupsafe==2.1.5", ["--platform", f"musllinux_1_1_{platform.machine()}"]),
           ("torchvision==0.23.0", ["--platform", "MACHINE"]), ("numpy==1.26.4", ["--platform", "MACHINE"])]
SOURCE = "flash-attn==2.8.3"


def packages_with_torch() -> list:
    return WITH_TORCH + (WITH_TORCH_X86_64 if platform.machine() == "x86_64" else [])

/* The loops over updates: inner products, weighted sums and trimmed means; and the descent to noise
levels, a loop over pairs of parties.
`plain.py` says the same in numpy; both have the same signatures and the same tests.

A row holds one party's numbers in one tensor, uncopied: any object with a buffer. All loops run
without Python's lock and start no threads: the caller gives ranges to its own threads. Sums within
a chunk have the type of the numbers, sums over chunks are double. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef _MSC_VER
#define restrict __restrict
#endif
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define UNROLL _Pragma("GCC unroll 8")
#else
#define UNROLL
#endif
#ifdef __GNUC__
#define PREFETCH(x) __builtin_prefetch((x), 0, 2)
#else
#define PREFETCH(x)
#endif

typedef struct {
    const char *data; /* NULL: all zero */
    char code; /* f: float32, d: float64, e: float16, b: bfloat16 */
} Row;

/* A sum with witnesses: its input, its output, and memory to work in. */
typedef struct {
    const Row *rows, *out;
    Py_ssize_t count, parties, ring;
    const double *weights;
    const char *witnesses;
    double headroom, *squares, *alone;
    void *room;
    const void **where;
} Sum;

/* The pairs to fit, and how: see estimators/levels.py. */
typedef struct {
    const double *distances, *met, *start, *ends; /* (J, J), symmetric, both; (J,); E of (J,) */
    double bar, exact, hardening, tolerance, most, pull, least, same;
    Py_ssize_t count, others; /* J, E */
} Fit;

#define LARGEST_HALF 65504.0
#define LARGEST_BFLOAT16 3.3895313892515355e38
#define CLIP(x, most) ((x) > (most) ? (most) : (x) < -(most) ? -(most) : (x))
#define LESSER(a, b) ((a) < (b) ? (a) : (b))
#define CHUNK 4096 /* columns of a sum at once: a few rows stay in the cache */
/* Bytes before the first whole cache line of a large array, which numpy lets begin 16 bytes after
one. It is the same for all arrays: a cut that depended on their addresses would change sums. */
#define TO_LINE 48
#define DEPTH 960  /* columns of inner products at once: two tiles' rows stay in the first cache */
#define FLUSH 16   /* chunks after which sums go from single precision to double */
#define COLUMNS 32 /* sorted at once: two vectors, or a few */
#define PIECE 256  /* columns clipped at once: all rows stay in the cache */
#define MANY 100   /* with so many parties, this many steps usually solve the levels' equations: */
#define GRADIENTS 20
#define SOLVED 1e-7 /* the relative error that ends the steps */

static inline float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The bias of the exponent is 112 less. The product corrects it, also for subnormal numbers. */
static inline float from_half(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    return from_bits(to_bits(from_bits(bits) * 0x1p112f) | special | sign);
}

/* To nearest, ties to even. */
static inline uint16_t to_bfloat16(float x)
{
    uint32_t bits = to_bits(x);
    if (x != x)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* To nearest, ties to even; at most LARGEST_HALF. Numbers below 2^-14 are subnormal: adding a half
lines up their last bit with the last bit of a float. */
static inline uint16_t to_half(float x)
{
    uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (x != x)
        return (uint16_t)(sign | 0x7e00);
    if (size < 0x38800000)
        return (uint16_t)(sign | (to_bits(from_bits(size) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}

#define VECTORS 7 /* of working memory, beside the matrix of the equations */
#define WIDTH(n) (((n) + 7) / 8 * 8)

/* Returns the largest relative difference between two sets of levels. */
static double apart(const double *x, const double *y, Py_ssize_t n)
{
    double most = 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        double by = fabs(x[k] - y[k]) / (x[k] + y[k]);
        most = by > most ? by : most;
    }
    return most;
}

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define T float
#define BYTES 64
#define TALL 6
#define WIDE 4
#define TARGET __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#define EACH(f) _mm512_##f##_ps
#define NAME(f) f##_avx512_float
#include "_kernels.h"
#define LEVELS
#define T double
#define BYTES 64
#define TALL 6
#define WIDE 4
#define TARGET __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#define EACH(f) _mm512_##f##_pd
#define NAME(f) f##_avx512_double
#include "_kernels.h"
#define T float
#define BYTES 32
#define TALL 3
#define WIDE 4
#define TARGET __attribute__((target("avx2,fma")))
#define EACH(f) _mm256_##f##_ps
#define NAME(f) f##_avx2_float
#include "_kernels.h"
#define LEVELS
#define T double
#define BYTES 32
#define TALL 3
#define WIDE 4
#define TARGET __attribute__((target("avx2,fma")))
#define EACH(f) _mm256_##f##_pd
#define NAME(f) f##_avx2_double
#include "_kernels.h"
#endif

/* The compiler's default: NEON where every processor has it. */
#ifdef __GNUC__
#define SHORT 16
#else
#define SHORT sizeof(T)
#endif
#if defined(__GNUC__) && defined(__x86_64__)
#define ANY(f, type) _mm_##f##_##type
#elif defined(__GNUC__)
#define ANY(f, type) any_##f
#define PICK(mask, a, b) (((mask) & (__typeof__(mask))(a)) | (~(mask) & (__typeof__(mask))(b)))
#define any_max(a, b) PICK((a) > (b), a, b)
#define any_min(a, b) PICK((a) < (b), a, b)
#else
#define ANY(f, type) any_##f
#define any_max(a, b) ((a) > (b) ? (a) : (b))
#define any_min(a, b) ((a) < (b) ? (a) : (b))
#endif
#define T float
#define BYTES SHORT
#define TALL 3
#define WIDE 4
#define TARGET
#define EACH(f) ANY(f, ps)
#define NAME(f) f##_any_float
#include "_kernels.h"
#define LEVELS
#define T double
#define BYTES SHORT
#define TALL 3
#define WIDE 4
#define TARGET
#define EACH(f) ANY(f, pd)
#define NAME(f) f##_any_double
#include "_kernels.h"

typedef struct {
    size_t (*room)(Py_ssize_t);
    void (*gram)(const Row *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, void *, Py_ssize_t,
                 void *);
    void (*flush)(void *, Py_ssize_t, double *);
    int (*combine)(const Row *, Py_ssize_t, const double *, Py_ssize_t, Py_ssize_t, const Row *,
                   void *, Py_ssize_t, Py_ssize_t, double *, double *);
    int (*trim)(const Row *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, const Row *, void *,
                double *, double *);
    int (*corroborate)(const Sum *, Py_ssize_t, Py_ssize_t);
    void (*look)(const Row *, const int64_t *, Py_ssize_t, void *);
} Kernels;

typedef struct {
    const char *name;
    Kernels single, wide;
    double (*descend)(const Fit *, double *, double *, Py_ssize_t *);
} Set;

#define KERNELS(name)                                                                              \
    {room_##name, gram_##name, flush_##name, combine_##name, trim_##name, corroborate_##name,  \
     look_##name}
#define SET(set) {#set, KERNELS(set##_float), KERNELS(set##_double), descend_##set##_double}

static const Set sets[] = {
#if defined(__GNUC__) && defined(__x86_64__)
    SET(avx512),
    SET(avx2),
#endif
    SET(any),
};
static const Set *in_use = sets; /* the best one; only tests ask for another */

static int can(const char *set)
{
#if defined(__GNUC__) && defined(__x86_64__)
    if (strcmp(set, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    if (strcmp(set, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return strcmp(set, "any") == 0;
}

/* The buffers that a call reads and writes, held until it ends. */
typedef struct {
    Row *rows;
    Py_buffer *views; /* of the rows, then of other things */
    Py_ssize_t count, held, length; /* length: of rows and output; -1 while unknown */
} Call;

#define OTHERS 4
#define MOST_ROWS (sizeof(void *) > 4 ? 1 << 28 : 1 << 13) /* no product of sizes overflows */

static void end(Call *call)
{
    while (call->held > 0)
        PyBuffer_Release(call->views + --call->held);
    PyMem_Free(call->views);
    PyMem_Free(call->rows);
}

/* Holds the buffer of an object, whose items must have this many bytes. */
static const Py_buffer *hold(Call *call, PyObject *object, int flags, Py_ssize_t width)
{
    Py_buffer *view = call->views + call->held;
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return NULL;
    call->held++;
    if (view->len % width == 0 && (uintptr_t)view->buf % width == 0)
        return view;
    PyErr_Format(PyExc_ValueError, "expected aligned numbers of %zd bytes", width);
    return NULL;
}

/* Holds a row or the output. All have one length, except for those that are None. */
static int take(Call *call, PyObject *object, int flags, char code, Row *row)
{
    Py_ssize_t width = code == 'd' ? 8 : code == 'f' ? 4 : code == 'e' || code == 'b' ? 2 : 0;
    row->data = NULL;
    row->code = code;
    if (object == Py_None)
        return 1;
    if (width == 0) {
        PyErr_SetString(PyExc_ValueError, "the code of a dtype is one of f, d, e and b");
        return 0;
    }
    const Py_buffer *view = hold(call, object, flags, width);
    if (view == NULL)
        return 0;
    if (call->length < 0)
        call->length = view->len / width;
    if (view->len / width != call->length) {
        PyErr_Format(PyExc_ValueError, "expected %zd numbers, found %zd", call->length,
                     view->len / width);
        return 0;
    }
    row->data = view->buf;
    return 1;
}

/* Holds the rows. */
static int begin(Call *call, PyObject *objects, const char *codes)
{
    memset(call, 0, sizeof *call);
    call->length = -1;
    PyObject *tuple = PySequence_Tuple(objects); /* a tuple cannot change meanwhile */
    if (tuple == NULL)
        return 0;
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (count > MOST_ROWS || (size_t)count != strlen(codes)) {
        PyErr_SetString(PyExc_ValueError, "expected a code for each row, and not too many rows");
        goto end;
    }
    call->rows = PyMem_Calloc(count + 1, sizeof(Row));
    call->views = PyMem_Calloc(count + OTHERS, sizeof(Py_buffer));
    if (call->rows == NULL || call->views == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    while (call->count < count && take(call, PyTuple_GET_ITEM(tuple, call->count), PyBUF_SIMPLE,
                                       codes[call->count], call->rows + call->count))
        call->count++;
end:
    Py_DECREF(tuple);
    return !PyErr_Occurred();
}

/* Tells whether no row is None. */
static int all_there(const Call *call)
{
    for (Py_ssize_t j = 0; j < call->count; j++)
        if (call->rows[j].data == NULL)
            return 0;
    return 1;
}

/* Holds this many other numbers of 8 bytes. Returns NULL for None, and after an error. */
static void *also(Call *call, PyObject *object, int flags, Py_ssize_t count)
{
    if (object == Py_None || PyErr_Occurred())
        return NULL;
    const Py_buffer *view = hold(call, object, flags, 8);
    if (view == NULL || view->len / 8 == count)
        return view == NULL ? NULL : view->buf;
    PyErr_Format(PyExc_ValueError, "expected %zd numbers, found %zd", count, view->len / 8);
    return NULL;
}

/* Numbers of a row in a chunk: at most so many, and a multiple of a cache line. */
static Py_ssize_t chunk_of(const Call *call, Py_ssize_t most)
{
    return LESSER(most, (call->length + 63) / 64 * 64);
}

/* Working memory, kept between calls: to take megabytes from the system and return them in each call
takes longer than the work, and threads wait for one another. It is aligned to cache lines, as a
vector across two lines costs two reads. */
#define SPARES 4
#define MOST_KEPT ((size_t)1 << 24)

typedef struct {
    size_t size;
    char *start;
} Spare;

static Spare spares[SPARES];
static PyThread_type_lock spares_lock;

static Spare borrow(size_t size)
{
    Spare found = {0, NULL};
    if (PyThread_acquire_lock(spares_lock, NOWAIT_LOCK)) { /* do not wait: a fork may leave it held */
        for (int s = 0; s < SPARES && found.start == NULL; s++)
            if (spares[s].size >= size) {
                found = spares[s];
                spares[s].size = 0;
            }
        PyThread_release_lock(spares_lock);
    }
    if (found.start == NULL) {
        found.size = size;
        found.start = PyMem_RawMalloc(size + 64);
    }
    if (found.start == NULL)
        PyErr_NoMemory();
    return found;
}

static void give_back(Spare used)
{
    if (used.size <= MOST_KEPT && PyThread_acquire_lock(spares_lock, NOWAIT_LOCK)) {
        for (int s = 0; s < SPARES && used.start != NULL; s++)
            if (spares[s].size < used.size) { /* the smaller one goes */
                char *gone = spares[s].size > 0 ? spares[s].start : NULL;
                spares[s] = used;
                used.start = gone;
                break;
            }
        PyThread_release_lock(spares_lock);
    }
    PyMem_RawFree(used.start);
}

static char *aligned(char *start)
{
    return (char *)(((uintptr_t)start + 63) & ~(uintptr_t)63);
}

PyDoc_STRVAR(gram_doc, "gram(rows, codes, about, total, wide)\n\n"
"Add the lower triangle of the rows' inner products to total, (P, P) float64. The row `about` is\n"
"subtracted from all of them; -1: none is. A row that is None is zero.");

static PyObject *gram(PyObject *self, PyObject *args)
{
    PyObject *objects, *sums;
    const char *codes;
    Py_ssize_t about;
    int wide, good = 0;
    Call call;
    (void)self;
    if (!PyArg_ParseTuple(args, "OynOp", &objects, &codes, &about, &sums, &wide))
        return NULL;
    if (!begin(&call, objects, codes))
        goto end;
    double *total = also(&call, sums, PyBUF_WRITABLE, call.count * call.count);
    if (PyErr_Occurred())
        goto end;
    if (total == NULL || about >= call.count || (about >= 0 && call.rows[about].data == NULL)) {
        PyErr_SetString(PyExc_ValueError, "there is no such row to subtract, or no total");
        goto end;
    }
    const Kernels *use = wide ? &in_use->wide : &in_use->single;
    size_t number = wide ? sizeof(double) : sizeof(float), room = use->room(call.count);
    Py_ssize_t chunk = chunk_of(&call, wide ? DEPTH / 2 : DEPTH);
    Py_ssize_t padded = call.count + 6; /* tiles extend beyond the last row */
    Spare spare = borrow(padded * chunk * number + room);
    if (spare.start == NULL)
        goto end;
    char *tiles = aligned(spare.start), *packed = tiles + room;
    Py_BEGIN_ALLOW_THREADS
    memset(tiles, 0, room);
    memset(packed + call.count * chunk * number, 0, 6 * chunk * number);
    for (Py_ssize_t at = 0, done = 1; at < call.length; at += chunk, done++) {
        use->gram(call.rows, call.count, about, at, LESSER(chunk, call.length - at), packed, chunk,
                  tiles);
        if (done % FLUSH == 0)
            use->flush(tiles, call.count, total);
    }
    use->flush(tiles, call.count, total);
    Py_END_ALLOW_THREADS
    give_back(spare);
    good = 1;
end:
    end(&call);
    return good ? Py_NewRef(Py_None) : NULL;
}

PyDoc_STRVAR(combine_doc, "combine(rows, codes, weights, out, code, squares, wide)\n\n"
"Write Σ_j w_j x_j to out, rounded to its dtype. Unless squares, float64, is None, add the squared\n"
"distance of each of the first rows, one for each of its numbers, from the row before it, of the\n"
"first from the last of these. Return whether all of it is finite. What is too large for single\n"
"precision is formed again in double.");

static PyObject *combine(PyObject *self, PyObject *args)
{
    PyObject *objects, *given, *target, *distances;
    const char *codes, *code;
    Row out;
    int wide, good = 0, finite = 1;
    Call call;
    (void)self;
    if (!PyArg_ParseTuple(args, "OyOOyOp", &objects, &codes, &given, &target, &code, &distances,
                          &wide))
        return NULL;
    if (!begin(&call, objects, codes) || !take(&call, target, PyBUF_WRITABLE, code[0], &out))
        goto end;
    const double *weights = also(&call, given, PyBUF_SIMPLE, call.count);
    Py_ssize_t ring = distances == Py_None ? 0 : PyObject_Size(distances);
    double *squares = also(&call, distances, PyBUF_WRITABLE, ring);
    if (PyErr_Occurred())
        goto end;
    if (out.data == NULL || weights == NULL || ring > call.count) {
        PyErr_SetString(PyExc_ValueError, "expected weights, an output, and no square too many");
        goto end;
    }
    for (Py_ssize_t j = 0; j < call.count; j++)
        if (call.rows[j].data == NULL) {
            PyErr_Format(PyExc_ValueError, "row %zd is none", j);
            goto end;
        }
    Py_ssize_t chunk = chunk_of(&call, CHUNK);
    Spare spare = borrow(((call.count + 1) * chunk + call.count) * sizeof(double));
    if (spare.start == NULL)
        goto end;
    double *found = (double *)aligned(spare.start);
    void *room = found + call.count;
    const Set *set = in_use;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < call.length; at += chunk) {
        Py_ssize_t n = LESSER(chunk, call.length - at);
        if (wide || !set->single.combine(call.rows, call.count, weights, at, n, &out, room, chunk,
                                         ring, squares, found))
            finite &= set->wide.combine(call.rows, call.count, weights, at, n, &out, room, chunk,
                                        ring, squares, found);
    }
    Py_END_ALLOW_THREADS
    give_back(spare);
    good = 1;
end:
    end(&call);
    return good ? PyBool_FromLong(finite) : NULL;
}

PyDoc_STRVAR(trim_doc, "trim(rows, codes, cut, out, code, every, shares, squares, wide)\n\n"
"Write the mean of each column without its `cut` least and `cut` greatest to out. Of one block of\n"
"columns in `every`, add each row's share in the result to shares and its squared distance from\n"
"it to squares, both (J,) float64. Return how many columns those were of, or -1 if something is\n"
"not finite.");

static PyObject *trim(PyObject *self, PyObject *args)
{
    PyObject *objects, *target, *counted, *distances;
    const char *codes, *code;
    Py_ssize_t cut, every, seen = 0;
    Row out;
    int wide, good = 0, finite = 1;
    Call call;
    (void)self;
    if (!PyArg_ParseTuple(args, "OynOynOOp", &objects, &codes, &cut, &target, &code, &every,
                          &counted, &distances, &wide))
        return NULL;
    if (!begin(&call, objects, codes) || !take(&call, target, PyBUF_WRITABLE, code[0], &out))
        goto end;
    double *shares = also(&call, counted, PyBUF_WRITABLE, call.count);
    double *squares = also(&call, distances, PyBUF_WRITABLE, call.count);
    if (PyErr_Occurred())
        goto end;
    if (!all_there(&call) || cut < 0 || cut >= (call.count + 1) / 2 || every < 1 || out.data == NULL ||
        shares == NULL || squares == NULL) {
        PyErr_SetString(PyExc_ValueError, "nothing is left, or nowhere to put it");
        goto end;
    }
    void *buffer = PyMem_RawMalloc(2 * call.count * COLUMNS * sizeof(double));
    if (buffer == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    const Kernels *use = wide ? &in_use->wide : &in_use->single;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < call.length; at += COLUMNS) {
        Py_ssize_t n = LESSER(COLUMNS, call.length - at);
        int told = at / COLUMNS % every == 0;
        finite &= use->trim(call.rows, call.count, cut, at, n, &out, buffer, told ? shares : NULL,
                            squares);
        seen += told ? n : 0;
    }
    Py_END_ALLOW_THREADS
    PyMem_RawFree(buffer);
    good = 1;
end:
    end(&call);
    return good ? PyLong_FromSsize_t(finite ? seen : -1) : NULL;
}

/* Bytes of working memory: numbers of each row and of five more, two vectors of sums, an address. */
#define ROOM(count) ((count) * (8 * PIECE + 2 * 64 + sizeof(void *)) + 5 * 8 * PIECE + 8 * 64)

PyDoc_STRVAR(corroborate_doc,
"corroborate(rows, codes, weights, witnesses, headroom, out, code, squares, alone, wide)\n\n"
"As combine, but none of the first rows counts far beyond the witnesses: in each column, beyond the\n"
"second least and the second greatest of these by `headroom` times what they are apart. `witnesses`\n"
"has a byte for each of the first rows, at least three of them not zero. Add the squares of what\n"
"was cut off to alone, float64.");

static PyObject *corroborate(PyObject *self, PyObject *args)
{
    PyObject *objects, *given, *target, *distances, *lost;
    const char *codes, *code, *witnesses;
    double headroom;
    Py_ssize_t parties, heard = 0;
    Row out;
    int wide, good = 0, finite = 1;
    Call call;
    (void)self;
    if (!PyArg_ParseTuple(args, "OyOy#dOyOOp", &objects, &codes, &given, &witnesses, &parties,
                          &headroom, &target, &code, &distances, &lost, &wide))
        return NULL;
    if (!begin(&call, objects, codes) || !take(&call, target, PyBUF_WRITABLE, code[0], &out))
        goto end;
    const double *weights = also(&call, given, PyBUF_SIMPLE, call.count);
    Py_ssize_t ring = distances == Py_None ? 0 : PyObject_Size(distances);
    double *squares = also(&call, distances, PyBUF_WRITABLE, ring);
    double *alone = also(&call, lost, PyBUF_WRITABLE, parties);
    if (PyErr_Occurred())
        goto end;
    for (Py_ssize_t j = 0; j < parties; j++)
        heard += witnesses[j] != 0;
    if (!all_there(&call) || out.data == NULL || weights == NULL || alone == NULL || heard < 3 ||
        parties > call.count || ring > parties) {
        PyErr_SetString(PyExc_ValueError, "expected rows, weights, three witnesses, and an output");
        goto end;
    }
    Spare spare = borrow(ROOM(call.count));
    if (spare.start == NULL)
        goto end;
    void *room = aligned(spare.start);
    Sum sum = {call.rows, &out, call.count, parties, ring, weights, witnesses, headroom, squares,
               alone, room, (const void **)((char *)room + ROOM(call.count)) - call.count};
    const Set *set = in_use;
    Py_BEGIN_ALLOW_THREADS
    Py_ssize_t odd = TO_LINE / (codes[0] == 'd' ? 8 : 4);
    for (Py_ssize_t at = 0, n; at < call.length; at += n) {
        n = LESSER(at == 0 ? odd : CHUNK, call.length - at);
        if (wide || !set->single.corroborate(&sum, at, n))
            finite &= set->wide.corroborate(&sum, at, n);
    }
    Py_END_ALLOW_THREADS
    give_back(spare);
    good = 1;
end:
    end(&call);
    return good ? PyBool_FromLong(finite) : NULL;
}

PyDoc_STRVAR(look_doc, "look(rows, codes, places, out, at, wide)\n\n"
"Write each row's numbers at some places, int64, to the columns from `at` on of out, (J, N) float32,\n"
"or float64 if wide.");

static PyObject *look(PyObject *self, PyObject *args)
{
    PyObject *objects, *given, *target;
    const char *codes;
    Py_ssize_t at;
    int wide, good = 0;
    Call call;
    (void)self;
    if (!PyArg_ParseTuple(args, "OyOOnp", &objects, &codes, &given, &target, &at, &wide))
        return NULL;
    if (!begin(&call, objects, codes))
        goto end;
    Py_ssize_t n = PyObject_Size(given), number = wide ? sizeof(double) : sizeof(float);
    const int64_t *places = also(&call, given, PyBUF_SIMPLE, n);
    const Py_buffer *out = PyErr_Occurred() ? NULL : hold(&call, target, PyBUF_WRITABLE, number);
    if (out == NULL)
        goto end;
    Py_ssize_t width = call.count > 0 ? out->len / number / call.count : 0;
    int inside = all_there(&call) && at >= 0 && n <= width - at;
    for (Py_ssize_t k = 0; k < n; k++)
        inside &= places[k] >= 0 && places[k] < call.length;
    if (!inside || width * call.count * number != out->len) {
        PyErr_SetString(PyExc_ValueError, "expected places within the rows, and room for them");
        goto end;
    }
    const Kernels *use = wide ? &in_use->wide : &in_use->single;
    char *to = (char *)out->buf + at * number;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t j = 0; j < call.count; j++)
        use->look(call.rows + j, places, n, to + j * width * number);
    Py_END_ALLOW_THREADS
    good = 1;
end:
    end(&call);
    return good ? Py_NewRef(Py_None) : NULL;
}

PyDoc_STRVAR(descend_doc, "descend(pairs, start, ends, levels, how)\n\n"
"Write where a fit of levels from this start ends to levels. The pairs are the distances and how\n"
"often each two met, both (J, J) float64 and symmetric. Return the iterations and the objective,\n"
"infinity once the fit is where another ended: ends, (E, J).");

static PyObject *descend(PyObject *self, PyObject *args)
{
    PyObject *pairs, *given, *others, *target;
    Fit fit;
    int good = 0;
    Py_ssize_t iterations = 0;
    double objective = 0;
    Call call;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO(dddddddd)", &pairs, &given, &others, &target, &fit.bar,
                          &fit.exact, &fit.hardening, &fit.tolerance, &fit.most, &fit.pull,
                          &fit.least, &fit.same))
        return NULL;
    if (!begin(&call, pairs, "dd"))
        goto end;
    fit.distances = (const double *)call.rows[0].data;
    fit.met = (const double *)call.rows[1].data;
    fit.count = PyObject_Size(given);
    fit.others = PyObject_Size(others);
    fit.start = also(&call, given, PyBUF_SIMPLE, fit.count);
    fit.ends = also(&call, others, PyBUF_SIMPLE, fit.others * fit.count);
    double *levels = also(&call, target, PyBUF_WRITABLE, fit.count);
    if (PyErr_Occurred())
        goto end;
    if (fit.distances == NULL || fit.met == NULL || levels == NULL || fit.count > MOST_ROWS ||
        call.length != fit.count * fit.count) {
        PyErr_SetString(PyExc_ValueError, "expected a distance of each two, and room for levels");
        goto end;
    }
    Spare spare = borrow((fit.count + 6 + VECTORS) * WIDTH(fit.count) * sizeof(double));
    if (spare.start == NULL)
        goto end;
    const Set *set = in_use;
    Py_BEGIN_ALLOW_THREADS
    objective = set->descend(&fit, levels, (double *)aligned(spare.start), &iterations);
    Py_END_ALLOW_THREADS
    give_back(spare);
    good = 1;
end:
    end(&call);
    return good ? Py_BuildValue("nd", iterations, objective) : NULL;
}

static PyObject *use(PyObject *self, PyObject *args)
{
    const char *wanted;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &wanted))
        return NULL;
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++)
        if (strcmp(sets[s].name, wanted) == 0 && can(wanted)) {
            in_use = sets + s;
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "this machine has no %s", wanted);
}

static PyObject *used(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyUnicode_FromString(in_use->name);
}

static PyObject *available(PyObject *self, PyObject *args)
{
    PyObject *names = PyList_New(0);
    (void)self;
    (void)args;
    for (size_t s = 0; names != NULL && s < sizeof sets / sizeof *sets; s++)
        if (can(sets[s].name)) {
            PyObject *name = PyUnicode_FromString(sets[s].name);
            if (name == NULL || PyList_Append(names, name) < 0)
                Py_CLEAR(names);
            Py_XDECREF(name);
        }
    return names;
}

static PyMethodDef methods[] = {
    {"gram", gram, METH_VARARGS, gram_doc},
    {"combine", combine, METH_VARARGS, combine_doc},
    {"trim", trim, METH_VARARGS, trim_doc},
    {"corroborate", corroborate, METH_VARARGS, corroborate_doc},
    {"look", look, METH_VARARGS, look_doc},
    {"descend", descend, METH_VARARGS, descend_doc},
    {"use", use, METH_VARARGS, "use(name)\n\nTake the loops for this set of instructions."},
    {"in_use", used, METH_NOARGS, "The set in use."},
    {"available", available, METH_NOARGS, "The sets this machine has, the best first."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_loops", "Loops over updates, compiled.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__loops(void)
{
    while (!can(in_use->name))
        in_use++;
    if (spares_lock == NULL && (spares_lock = PyThread_allocate_lock()) == NULL)
        return PyErr_NoMemory();
    return PyModuleDef_Init(&module);
}
